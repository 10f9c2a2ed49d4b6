// An HTTP server whose every answer a test writes, for what a real one does rarely or not at all.
// One thread, one request at a time; connections are kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "base/descriptor.h"

namespace aquifer {

struct HttpQuestion {
  std::string method{};
  std::string target{};                          // "/kv/name?query"
  std::map<std::string, std::string> headers{};  // Names in lower case.
  std::string body{};
};

struct HttpReply {
  int status = 200;
  // Whole lines, each with "\r
  // ".
  std::string headers{};
  std::string body{};
};

class ScriptedHttp {
 public:
  // `answer` runs on the server's thread.
  explicit ScriptedHttp(std::function<HttpReply(const HttpQuestion&)> answer);
  ~ScriptedHttp();
  ScriptedHttp(const ScriptedHttp&) = delete;
  ScriptedHttp& operator=(const ScriptedHttp&) = delete;

  std::string url() const;

 private:
  struct Peer;

  void Run();
  bool Serve(Peer* peer);

  const std::function<HttpReply(const HttpQuestion&)> answer_;
  Descriptor listener_;
  Descriptor ending_;
  std::thread thread_;
};

}  // namespace aquifer
