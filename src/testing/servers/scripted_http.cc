#include "testing/servers/scripted_http.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <utility>
#include <vector>

#include "base/check.h"

namespace aquifer {
namespace {

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

// Takes a whole request out of the input. Returns false if it is not complete yet.
bool TakeQuestion(std::string* input, HttpQuestion* question) {
  const size_t end = input->find("\r\n\r\n");
  if (end == std::string::npos) return false;
  *question = {};
  size_t line = input->find("\r\n");
  const std::string first = input->substr(0, line);
  question->method = first.substr(0, first.find(' '));
  question->target = first.substr(first.find(' ') + 1);
  question->target.resize(question->target.find(' '));
  while (line < end) {
    const size_t begin = line + 2;
    line = input->find("\r\n", begin);
    const size_t colon = input->find(':', begin);
    question->headers[Lower(input->substr(begin, colon - begin))] =
        input->substr(colon + 2, line - colon - 2);
  }
  const auto length = question->headers.find("content-length");
  const size_t body = length == question->headers.end() ? 0 : std::stoul(length->second);
  if (input->size() < end + 4 + body) return false;
  question->body = input->substr(end + 4, body);
  input->erase(0, end + 4 + body);
  return true;
}

}  // namespace

struct ScriptedHttp::Peer {
  Descriptor socket;
  std::string input{};
};

ScriptedHttp::ScriptedHttp(std::function<HttpReply(const HttpQuestion&)> answer)
    : answer_(std::move(answer)),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      ending_(eventfd(0, EFD_CLOEXEC)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  AQ_CHECK(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  AQ_CHECK(::listen(listener_.get(), SOMAXCONN) == 0);
  thread_ = std::thread([this] { Run(); });
}

ScriptedHttp::~ScriptedHttp() {
  const uint64_t one = 1;
  AQ_CHECK(::write(ending_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

std::string ScriptedHttp::url() const {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  AQ_CHECK(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return fmt::format("http://127.0.0.1:{}", ntohs(address.sin_port));
}

void ScriptedHttp::Run() {
  std::list<Peer> peers;
  while (true) {
    std::vector<pollfd> waiting = {{.fd = ending_.get(), .events = POLLIN, .revents = 0},
                                   {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Peer& peer : peers) {
      waiting.push_back({.fd = peer.socket.get(), .events = POLLIN, .revents = 0});
    }
    if (::poll(waiting.data(), waiting.size(), -1) < 0) continue;
    if (waiting[0].revents != 0) return;
    size_t i = 2;
    for (auto peer = peers.begin(); peer != peers.end(); ++i) {
      const bool over = waiting[i].revents != 0 && !Serve(&*peer);
      peer = over ? peers.erase(peer) : std::next(peer);
    }
    if (waiting[1].revents != 0) {
      peers.push_back({.socket = Descriptor(::accept(listener_.get(), nullptr, nullptr))});
    }
  }
}

// Returns false if the connection is over.
bool ScriptedHttp::Serve(Peer* peer) {
  char bytes[65536];
  const ssize_t length = ::recv(peer->socket.get(), bytes, sizeof(bytes), 0);
  if (length <= 0) return false;
  peer->input.append(bytes, static_cast<size_t>(length));
  HttpQuestion question;
  while (TakeQuestion(&peer->input, &question)) {
    const HttpReply reply = answer_(question);
    std::string text = fmt::format("HTTP/1.1 {} Said\r\ncontent-length: {}\r\n{}\r\n", reply.status,
                                   reply.body.size(), reply.headers);
    if (question.method != "HEAD") text += reply.body;
    if (::send(peer->socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return false;
  }
  return true;
}

}  // namespace aquifer
