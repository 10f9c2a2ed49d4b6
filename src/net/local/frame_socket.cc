#include "net/local/frame_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/detached_task.h"
#include "base/interruption.h"
#include "net/protocol/frame.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

namespace aquifer {
namespace {

constexpr size_t kMaxDescriptors = 8;  // The most descriptors that come with one frame.
constexpr size_t kReadBytes = 4096;
constexpr int kBacklog = 128;
// How long closing a file may take before it is interrupted.
constexpr int64_t kInterruptNanos = 1'000'000'000;

Status Failed(const std::string& what) {
  return Status(Code::kUnavailable, what + ": " + std::strerror(errno));
}

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status(Code::kInvalid, "the socket path " + path + " is not 1 to " +
                                      std::to_string(sizeof(address.sun_path) - 1) +
                                      " bytes long; choose a shorter one");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Descriptor NewSocket() {
  return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

template <class Call>
auto Retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Forbids clients to send descriptors over sockets of this listener: closing them could take for
// ever. Returns false if the kernel cannot forbid it (before Linux 6.16).
bool RefuseDescriptors(const Descriptor& listener) {
  const int pass = 0;
  return ::setsockopt(listener.get(), SOL_SOCKET, SO_PASSRIGHTS, &pass, sizeof(pass)) == 0;
}

// Returns 0, or errno.
int ConnectSocket(const Descriptor& socket, const sockaddr_un& address) {
  const int connected = Retry([&] {
    return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  });
  return connected == 0 ? 0 : errno;
}

// Succeeds if nobody listens there, so that the file may be replaced. Every other outcome may be a
// node that is too busy to answer.
Status CheckIsFree(const std::string& path, const sockaddr_un& address) {
  const Descriptor socket = NewSocket();
  if (!socket.valid()) return Failed("socket");
  const int error = ConnectSocket(socket, address);
  if (error == ENOENT) return Status();
  if (error != ECONNREFUSED) {
    return Status(Code::kBusy, "another node listens on " + path +
                                   "; stop it, or choose another path with --socket");
  }
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode)) {
    return Status(Code::kInvalid, path + " is no socket; choose another path with --socket");
  }
  return Status();
}

}  // namespace

Result<PeerCredentials> FrameSocket::Peer() const {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return Failed("SO_PEERCRED");
  }
  return PeerCredentials{.pid = credentials.pid, .uid = credentials.uid};
}

Descriptor FrameSocket::PeerProcess() const {
  int process = -1;
  socklen_t bytes = sizeof(process);
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERPIDFD, &process, &bytes) == 0) {
    return Descriptor(process);
  }
  if (errno != ENOPROTOOPT) return Descriptor();
  // On an older kernel the process is found by its number. We must trust that the number has not
  // been reused since.
  const Result<PeerCredentials> peer = Peer();
  if (!peer.ok()) return Descriptor();
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, peer->pid, 0)));
}

void FrameSocket::KeepFewOnTheirWay() {
  const int least = 1;  // The kernel has a minimum of its own, which is room for about seven.
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &least, sizeof(least));
}

Status FrameSocket::Send(std::span<const std::byte> frame, std::span<const int> descriptors) {
  unsent_.push_back({.bytes = {frame.begin(), frame.end()},
                     .sent = 0,
                     .descriptors = {descriptors.begin(), descriptors.end()}});
  return Flush();
}

Status FrameSocket::Flush() {
  for (; !unsent_.empty(); unsent_.pop_front(), ++sent_frames_) {
    Unsent& next = unsent_.front();
    while (next.sent < next.bytes.size()) {
      iovec piece{next.bytes.data() + next.sent, next.bytes.size() - next.sent};
      msghdr message{};
      message.msg_iov = &piece;
      message.msg_iovlen = 1;
      alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
      if (next.sent == 0 && !next.descriptors.empty()) {
        const size_t bytes = next.descriptors.size() * sizeof(int);
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(bytes);
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(bytes);
        std::memcpy(CMSG_DATA(header), next.descriptors.data(), bytes);
      }
      const ssize_t sent =
          Retry([&] { return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
      too_many_descriptors_ = sent < 0 && errno == ETOOMANYREFS;
      if (sent < 0 && (errno == EAGAIN || errno == ETOOMANYREFS)) return Status();
      if (sent < 0) return Failed("the connection is over");
      next.sent += static_cast<size_t>(sent);
    }
  }
  return Status();
}

Status FrameSocket::Receive(std::vector<std::byte>* frame, bool with_descriptors) {
  while (true) {
    if (input_.size() >= kFrameHeaderBytes) {
      const uint32_t bytes = GetU32(input_.data());
      if (!IsFrameLength(bytes)) return Status(Code::kInvalid, "a frame has an impossible length");
      if (input_.size() >= bytes) {
        frame->assign(input_.begin(), input_.begin() + bytes);
        input_.erase(input_.begin(), input_.begin() + bytes);
        return Status();
      }
    }
    AQ_RETURN_IF_ERROR(FillInput(with_descriptors));
  }
}

Result<size_t> FrameSocket::PeekBytes() const {
  std::byte buffer[kReadBytes];
  iovec piece{buffer, sizeof(buffer)};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  const ssize_t there =
      Retry([&] { return ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_PEEK); });
  if (there < 0 && errno == EAGAIN) return Status(Code::kNotFound);
  if (there < 0) return Failed("the connection is over");
  // The kernel truncates descriptors that find no room. This is how we know that some came.
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Status(Code::kInvalid, "the other process sent descriptors where none are allowed");
  }
  return static_cast<size_t>(there);
}

Status FrameSocket::FillInput(bool with_descriptors) {
  std::byte buffer[kReadBytes];
  iovec piece{buffer, sizeof(buffer)};
  if (!with_descriptors) {
    // Descriptors received without room would be closed right here, however long that takes.
    AQ_ASSIGN_OR_RETURN(piece.iov_len, PeekBytes());
    if (piece.iov_len == 0) {
      return Status(Code::kUnavailable, "the other side closed the connection");
    }
  }
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  if (with_descriptors) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  const ssize_t got =
      Retry([&] { return ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
  if (got < 0 && errno == EAGAIN) return Status(Code::kNotFound);
  if (got < 0) return Failed("the connection is over");
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      descriptors_.emplace_back(descriptor);
    }
  }
  if (got == 0) return Status(Code::kUnavailable, "the other side closed the connection");
  input_.insert(input_.end(), buffer, buffer + got);
  return Status();
}

Descriptor FrameSocket::TakeDescriptor() {
  if (descriptors_.empty()) return Descriptor();
  Descriptor first = std::move(descriptors_.front());
  descriptors_.pop_front();
  return first;
}

FrameSocket::News FrameSocket::Look() const {
  std::byte any{};
  const ssize_t there =
      Retry([&] { return ::recv(socket_.get(), &any, sizeof(any), MSG_DONTWAIT | MSG_PEEK); });
  if (there > 0) return News::kBytes;
  return there < 0 && errno == EAGAIN ? News::kNone : News::kEnd;
}

bool FrameSocket::EndAndCheckEmpty() {
  return ::shutdown(socket_.get(), SHUT_RDWR) == 0 && Look() != News::kBytes &&
         descriptors_.empty();
}

void FrameSocket::Discard(FrameSocket socket,
                          const std::shared_ptr<std::atomic<uint32_t>>& closing) {
  if (!socket.socket_.valid() || socket.EndAndCheckEmpty()) return;
  // Shared, because an Executor's task must be copyable.
  const auto kept = std::make_shared<FrameSocket>(std::move(socket));
  closing->fetch_add(1);
  if (RunDetached("aq-close", [kept, closing] {
        const Interruption interruption(kInterruptNanos);
        kept->socket_ = Descriptor();
        kept->descriptors_.clear();
        closing->fetch_sub(1);
      })) {
    return;
  }
  // A leaked descriptor is better than a wait.
  [[maybe_unused]] const int lost = kept->socket_.Take();
}

void FrameSocket::EndSending() { ::shutdown(socket_.get(), SHUT_WR); }

Result<Descriptor> ListenOn(const std::string& path, bool private_to_user) {
  AQ_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  AQ_RETURN_IF_ERROR(CheckIsFree(path, address));
  ::unlink(path.c_str());
  Descriptor listener = NewSocket();
  if (!listener.valid()) return Failed("socket");
  [[maybe_unused]] const bool refused = RefuseDescriptors(listener);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed("cannot make the socket " + path);
  }
  AQ_RETURN_IF_ERROR(SetSocketMode(path, private_to_user));
  if (::listen(listener.get(), kBacklog) != 0) return Failed("cannot listen on " + path);
  return listener;
}

Status SetSocketMode(const std::string& path, bool private_to_user) {
  if (::chmod(path.c_str(), private_to_user ? 0600 : 0666) == 0) return Status();
  return Failed("cannot set the mode of " + path);
}

Result<Descriptor> AcceptOn(const Descriptor& listener) {
  Descriptor accepted(Retry(
      [&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }));
  if (accepted.valid()) return accepted;
  const bool used_up = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
  return Status(used_up ? Code::kBusy : Code::kNotFound, std::strerror(errno));
}

Result<Descriptor> ConnectTo(const std::string& path) {
  AQ_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  Descriptor socket = NewSocket();
  if (!socket.valid()) return Failed("socket");
  errno = ConnectSocket(socket, address);
  if (errno != 0) return Failed("no node answers on " + path);
  return socket;
}

}  // namespace aquifer
