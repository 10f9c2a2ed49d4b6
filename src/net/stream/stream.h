// A connection to a server by TCP, or by TLS over it, that never waits: the caller asks epoll when
// to go on. Bytes go from and into the caller's memory. One thread at a time.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/descriptor.h"
#include "net/stream/tls_context.h"

using SSL = struct ssl_st;

namespace aquifer {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

// Of an IP address and a port, without asking anyone; kNotFound when `host` is a name.
Result<SocketAddress> NumericAddress(const std::string& host, uint16_t port);
// All addresses of a name, the one to try first first. Asks the system's resolver, which may take
// long.
Result<std::vector<SocketAddress>> ResolveAddresses(const std::string& host, uint16_t port);

class Stream {
 public:
  // Begins to connect. With `tls`, the server's certificate must be for `tls_name`, a host's name
  // or an IP address.
  static Result<std::unique_ptr<Stream>> Connect(const SocketAddress& address,
                                                 std::shared_ptr<const TlsContext> tls,
                                                 const std::string& tls_name);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int descriptor() const { return socket_.get(); }

  // Goes on with connecting; true when Send() and Receive() may be called.
  Result<bool> Establish();
  // Somebody is there, whatever they speak.
  bool connected() const { return !connecting_; }

  // How many bytes were taken: none when there is no room now. kUnavailable: the connection is
  // gone, as of all that fails here.
  Result<size_t> Send(std::span<const iovec> parts);
  // How many have arrived, in the order of the parts: none when there are none now.
  Result<size_t> Receive(std::span<const iovec> parts);

  // Whether epoll should tell when the socket has room, also if the caller has nothing to send.
  bool NeedsRoom() const { return connecting_ || tls_wants_room_ || !unsent_.empty(); }

 private:
  Stream(Descriptor socket, std::shared_ptr<const TlsContext> tls)
      : socket_(std::move(socket)), tls_(std::move(tls)) {}

  Status StartTls(const std::string& tls_name);
  Result<size_t> SendTls(std::span<const iovec> parts);
  // True: nothing is left of what TLS could not write.
  Result<bool> SendUnsent();
  Result<size_t> ReceiveTls(std::span<const iovec> parts);
  // After a call of OpenSSL that did not succeed: ok when it only has to wait.
  Status TlsFailure(int result);

  const Descriptor socket_;
  // Shared, because the authorities are used by all connections of a store, in several threads.
  const std::shared_ptr<const TlsContext> tls_;
  SSL* ssl_ = nullptr;
  bool connecting_ = true;
  bool tls_wants_room_ = false;
  std::vector<std::byte> unsent_;  // A record's worth, taken from the caller and not yet written.
};

}  // namespace aquifer
