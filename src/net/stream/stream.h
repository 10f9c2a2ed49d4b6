// A Stream is a connection to a server by TCP, or by TLS over TCP. It never waits: the caller asks
// epoll when to go on. It reads from and writes to the caller's memory. One thread at a time.
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

// From an IP address and a port, without a look-up. Returns kNotFound if `host` is a name.
Result<SocketAddress> NumericAddress(const std::string& host, uint16_t port);
// Returns all addresses of a name, in the order in which to try them. Asks the system's resolver,
// which may take long.
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

  // Goes on with connecting. Returns true if Send() and Receive() may be called.
  Result<bool> Establish();
  // Returns true if a server accepted the connection, before any TLS.
  bool connected() const { return !connecting_; }

  // Returns how many bytes were taken; 0 if there is no room now. Every failure here is
  // kUnavailable: the connection is gone.
  Result<size_t> Send(std::span<const iovec> parts);
  // Returns how many bytes have arrived, in the order of the parts; 0 if there are none now.
  Result<size_t> Receive(std::span<const iovec> parts);

  // Returns true if epoll should report room in the socket, even if the caller has nothing to send.
  bool NeedsRoom() const { return connecting_ || tls_wants_room_ || !unsent_.empty(); }

 private:
  Stream(Descriptor socket, std::shared_ptr<const TlsContext> tls)
      : socket_(std::move(socket)), tls_(std::move(tls)) {}

  Status StartTls(const std::string& tls_name);
  Result<size_t> SendTls(std::span<const iovec> parts);
  // Returns true if TLS has no unwritten bytes left.
  Result<bool> SendUnsent();
  Result<size_t> ReceiveTls(std::span<const iovec> parts);
  // Turns a failed OpenSSL call into a Status. Ok means that the call only has to wait.
  Status TlsFailure(int result);

  const Descriptor socket_;
  // Shared, because all connections of a store use the same authorities, on several threads.
  const std::shared_ptr<const TlsContext> tls_;
  SSL* ssl_ = nullptr;
  bool connecting_ = true;
  bool tls_wants_room_ = false;
  std::vector<std::byte> unsent_;  // One record, taken from the caller and not yet written.
};

}  // namespace aquifer
