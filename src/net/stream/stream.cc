#include "net/stream/stream.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr size_t kRecordBytes = size_t{16} << 10;  // The most that one TLS record holds.
// Parts smaller than this are copied into one record.
constexpr size_t kSmallBytes = size_t{4} << 10;

Status Gone(std::string_view what, int error) {
  return Status(Code::kUnavailable, fmt::format("{}: {}", what, std::strerror(error)));
}

Status HungUp() { return Status(Code::kUnavailable, "the server has hung up"); }

bool MustWait(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

Result<std::vector<SocketAddress>> Lookup(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(error == EAI_NONAME ? Code::kNotFound : Code::kUnavailable,
                  fmt::format("'{}' has no address: {}", host, gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* next = found; next != nullptr; next = next->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, next->ai_addr, next->ai_addrlen);
    address.bytes = next->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

// OpenSSL's own socket BIO can end the process with SIGPIPE when the server is gone, unless the
// process ignores that signal. A library must not decide that for its process.
int WriteQuietly(BIO* bio, const char* bytes, int count) {
  const ssize_t sent = send(static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))), bytes,
                            static_cast<size_t>(count), MSG_NOSIGNAL);
  BIO_clear_retry_flags(bio);
  if (sent < 0 && MustWait(errno)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReadQuietly(BIO* bio, char* bytes, int count) {
  const ssize_t got = recv(static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))), bytes,
                           static_cast<size_t>(count), 0);
  BIO_clear_retry_flags(bio);
  if (got < 0 && MustWait(errno)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long ControlBio(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO* NewBio(int socket) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "quiet socket");
    AQ_CHECK(made != nullptr);
    AQ_CHECK(BIO_meth_set_write(made, WriteQuietly) == 1);
    AQ_CHECK(BIO_meth_set_read(made, ReadQuietly) == 1);
    AQ_CHECK(BIO_meth_set_ctrl(made, ControlBio) == 1);
    return made;
  }();
  BIO* bio = BIO_new(method);
  AQ_CHECK(bio != nullptr);
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  return bio;
}

}  // namespace

Result<SocketAddress> NumericAddress(const std::string& host, uint16_t port) {
  AQ_ASSIGN_OR_RETURN(const std::vector<SocketAddress> found, Lookup(host, port, AI_NUMERICHOST));
  return found.front();
}

Result<std::vector<SocketAddress>> ResolveAddresses(const std::string& host, uint16_t port) {
  return Lookup(host, port, AI_ADDRCONFIG);
}

Result<std::unique_ptr<Stream>> Stream::Connect(const SocketAddress& address,
                                                std::shared_ptr<const TlsContext> tls,
                                                const std::string& tls_name) {
  Descriptor socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return Gone("socket", errno);
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) !=
          0 &&
      errno != EINPROGRESS) {
    return Gone("cannot connect", errno);
  }
  std::unique_ptr<Stream> stream(new Stream(std::move(socket), std::move(tls)));
  if (stream->tls_ != nullptr) AQ_RETURN_IF_ERROR(stream->StartTls(tls_name));
  return stream;
}

Stream::~Stream() { SSL_free(ssl_); }

Status Stream::StartTls(const std::string& tls_name) {
  ssl_ = SSL_new(tls_->get());
  AQ_CHECK(ssl_ != nullptr);
  BIO* bio = NewBio(socket_.get());
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_connect_state(ssl_);
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_), tls_name.c_str()) == 1) return Status();
  ERR_clear_error();
  if (SSL_set1_host(ssl_, tls_name.c_str()) == 1 &&
      SSL_set_tlsext_host_name(ssl_, tls_name.c_str()) == 1) {
    return Status();
  }
  return Status(Code::kInvalid, fmt::format("a certificate cannot be for '{}'", tls_name));
}

Result<bool> Stream::Establish() {
  if (connecting_) {
    int error = 0;
    socklen_t bytes = sizeof(error);
    AQ_CHECK(getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) == 0);
    if (error != 0) return Gone("cannot connect", error);
    sockaddr_storage peer;
    socklen_t peer_bytes = sizeof(peer);
    if (getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0) {
      return false;
    }
    connecting_ = false;
  }
  if (ssl_ == nullptr) return true;
  const int result = SSL_do_handshake(ssl_);
  tls_wants_room_ = false;
  if (result == 1) return true;
  AQ_RETURN_IF_ERROR(TlsFailure(result));
  return false;
}

Status Stream::TlsFailure(int result) {
  const int error = errno;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return Status();
    case SSL_ERROR_WANT_WRITE:
      tls_wants_room_ = true;
      return Status();
    case SSL_ERROR_ZERO_RETURN:
      return HungUp();
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return error == 0 ? HungUp() : Gone("TLS", error);
    default:
      break;
  }
  if (const long verified = SSL_get_verify_result(ssl_); verified != X509_V_OK) {
    ERR_clear_error();
    return Status(Code::kUnavailable, fmt::format("the server's certificate is not accepted: {}",
                                                  X509_verify_cert_error_string(verified)));
  }
  const int reason = ERR_GET_REASON(ERR_peek_error());
  const std::string words = TakeTlsError();
  if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG) {
    return Status(Code::kUnavailable, fmt::format("the server does not speak TLS ({})", words));
  }
  return Status(Code::kUnavailable, fmt::format("TLS: {}", words));
}

Result<size_t> Stream::Send(std::span<const iovec> parts) {
  if (ssl_ != nullptr) return SendTls(parts);
  if (parts.empty()) return size_t{0};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // sendmsg() only reads it.
  message.msg_iovlen = parts.size();
  const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (MustWait(errno)) return size_t{0};
  return Gone("the connection is lost", errno);
}

Result<size_t> Stream::Receive(std::span<const iovec> parts) {
  if (ssl_ != nullptr) return ReceiveTls(parts);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  const ssize_t got = recvmsg(socket_.get(), &message, 0);
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0) return HungUp();
  if (MustWait(errno)) return size_t{0};
  return Gone("the connection is lost", errno);
}

Result<bool> Stream::SendUnsent() {
  tls_wants_room_ = false;
  while (!unsent_.empty()) {
    const int written = SSL_write(ssl_, unsent_.data(), static_cast<int>(unsent_.size()));
    if (written <= 0) {
      AQ_RETURN_IF_ERROR(TlsFailure(written));
      return false;
    }
    unsent_.erase(unsent_.begin(), unsent_.begin() + written);
  }
  return true;
}

// OpenSSL wants unwritten bytes given again exactly as they were. The stream keeps that record here
// and counts it as sent, so that no caller has to remember it.
Result<size_t> Stream::SendTls(std::span<const iovec> parts) {
  size_t taken = 0;
  size_t offset = 0;  // Offset in the first part.
  while (true) {
    AQ_ASSIGN_OR_RETURN(const bool clear, SendUnsent());
    if (!clear || parts.empty()) return taken;
    const auto left = [&] {
      return std::span(static_cast<const std::byte*>(parts.front().iov_base), parts.front().iov_len)
          .subspan(offset);
    };
    const auto advance = [&](size_t bytes) {
      taken += bytes;
      offset += bytes;
      if (offset == parts.front().iov_len) {
        parts = parts.subspan(1);
        offset = 0;
      }
    };
    if (left().size() >= kSmallBytes) {
      const std::span<const std::byte> record = left().first(std::min(left().size(), kRecordBytes));
      const int written = SSL_write(ssl_, record.data(), static_cast<int>(record.size()));
      if (written > 0) {
        advance(static_cast<size_t>(written));
        continue;
      }
      AQ_RETURN_IF_ERROR(TlsFailure(written));
      unsent_.assign(record.begin(), record.end());
      advance(record.size());
      return taken;
    }
    while (!parts.empty() && left().size() < kSmallBytes && unsent_.size() < kRecordBytes) {
      const std::span<const std::byte> small =
          left().first(std::min(left().size(), kRecordBytes - unsent_.size()));
      unsent_.insert(unsent_.end(), small.begin(), small.end());
      advance(small.size());
    }
  }
}

Result<size_t> Stream::ReceiveTls(std::span<const iovec> parts) {
  size_t got = 0;
  for (const iovec& part : parts) {
    size_t filled = 0;
    while (filled < part.iov_len) {
      const int read = SSL_read(ssl_, static_cast<std::byte*>(part.iov_base) + filled,
                                static_cast<int>(part.iov_len - filled));
      if (read > 0) {
        filled += static_cast<size_t>(read);
        got += static_cast<size_t>(read);
        continue;
      }
      // Bytes that have arrived are returned first; the failure comes again.
      if (Status failure = TlsFailure(read); !failure.ok() && got == 0) return failure;
      return got;
    }
  }
  return got;
}

}  // namespace aquifer
