// This same program, started again with other arguments, or any other: for tests about processes
// that die. The child reads its standard input, which ends when the parent says so, and answers in
// lines on its standard output. It dies with its parent, where it asks for that (DieWithParent()),
// and with this object.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aquifer {

class ChildProcess {
 public:
  // `arguments` follow the program's name; `wrapper`, if any, is a command that runs the program.
  static std::unique_ptr<ChildProcess> Start(const std::vector<std::string>& arguments,
                                             const std::vector<std::string>& wrapper = {});
  // Another program. Its standard error is among the lines.
  static std::unique_ptr<ChildProcess> StartCommand(std::vector<std::string> words);
  ~ChildProcess();  // Kills it if it still runs.

  // The next line it wrote; nothing when the time is over or no more will come (see at_end()).
  std::optional<std::string> ReadLine(std::chrono::milliseconds timeout);
  bool at_end() const { return at_end_; }
  // Reads on until a line has this in it, and returns that line.
  std::optional<std::string> ReadUntil(std::string_view text, std::chrono::milliseconds timeout);

  pid_t pid() const { return pid_; }

  // A line for the child, which hears it with HearParent().
  void Tell(std::string_view line);
  void EndInput();
  void Signal(int signal);
  // With SIGSTOP; returns when all its threads stand still, which is a moment later.
  void Stop();
  void Kill();  // SIGKILL.
  // Its exit status, or minus the signal that ended it.
  int Wait();

 private:
  ChildProcess(pid_t pid, int input, int output) : pid_(pid), input_(input), output_(output) {}

  pid_t pid_;
  int input_;
  int output_;
  std::string buffer_;
  bool at_end_ = false;
};

// For the child: one line, written at once.
void TellParent(std::string_view line);
// For the child: the next line that the parent tells; nothing when there will be no more.
std::optional<std::string> HearParent();
// For the child: returns when the parent ended the input.
void WaitForParent();
// For the child, first of all: die when the parent does.
void DieWithParent();

}  // namespace aquifer
