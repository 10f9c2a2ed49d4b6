#include "cli/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace aquifer {
namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";  // Another page; no cursor.
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kClearLine = "\x1b[K";
constexpr std::string_view kClearRest = "\x1b[J";
constexpr char kCtrlC = 3;
constexpr char kCtrlD = 4;

void Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

bool Terminal::Is() { return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1; }

Terminal::Terminal() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ending, signal);
  ::pthread_sigmask(SIG_BLOCK, &ending, &signals_before_);
  signals_ = Descriptor(::signalfd(-1, &ending, SFD_CLOEXEC));
  ::tcgetattr(STDIN_FILENO, &before_);
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  Write(kEnter);
}

Terminal::~Terminal() {
  Write(kLeave);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  signals_ = Descriptor();
  ::pthread_sigmask(SIG_SETMASK, &signals_before_, nullptr);
}

ScreenSize Terminal::size() const {
  winsize window{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 || window.ws_row < 2) {
    return {};
  }
  return {.columns = window.ws_col, .rows = window.ws_row - size_t{1}};
}

// In one write, over what is there: no flicker.
void Terminal::Draw(const std::string& text) {
  std::string drawn(kHome);
  for (const char c : text) {
    if (c == '\n') drawn += kClearLine;
    drawn += c;
  }
  drawn += kClearRest;
  Write(drawn);
}

bool Terminal::WaitOrEnd(int milliseconds) {
  pollfd waiting[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                      {.fd = signals_.get(), .events = POLLIN, .revents = 0}};
  if (::poll(waiting, 2, milliseconds) <= 0) return true;
  if (waiting[1].revents != 0) return false;
  char key = 0;
  if (::read(STDIN_FILENO, &key, 1) != 1) return false;  // The terminal is gone.
  return key != 'q' && key != 'Q' && key != kCtrlC && key != kCtrlD;
}

}  // namespace aquifer
