// A peer that talks HTTP to a node, byte by byte, well or badly. Every wait ends after a minute, as
// a failure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace aquifer {

struct HeardResponse {
  int status = 0;
  std::map<std::string, std::string> headers{};  // Names in lower case.
  std::string body{};
};

class HttpPeer {
 public:
  // Connects to the loopback. It is not connected if nobody listens there.
  explicit HttpPeer(uint16_t port);
  explicit HttpPeer(const std::string& socket);

  bool connected() const { return socket_.valid(); }
  // Returns false if the node has closed the connection.
  bool Send(std::string_view bytes);
  // Returns nothing if the connection is over, or a minute has passed.
  std::optional<HeardResponse> Receive();
  // All that comes until this has come, or the connection is over.
  std::string ReceiveUntil(std::string_view text);
  // All that comes until the connection is over.
  std::string ReceiveAll();
  // Drops all bytes until the connection is over. Returns false after a minute.
  bool WaitForEnd();

 private:
  bool Fill();

  Descriptor socket_;
  std::string input_;
};

// "GET /v1/status HTTP/1.1" with the headers that it needs. `headers` are whole lines, each with
// "\r
// ".
std::string GetText(std::string_view path, std::string_view headers = {});
std::string PostText(std::string_view path, std::string_view body, std::string_view headers = {});

}  // namespace aquifer
