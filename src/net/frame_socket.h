// A Unix stream socket that carries frames, some of them with descriptors. Nothing here waits.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/descriptor.h"

namespace aquifer {

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

class FrameSocket {
 public:
  explicit FrameSocket(Descriptor socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  Result<PeerCredentials> Peer() const;
  // Becomes readable when the peer's process has ended; not valid where the kernel has no such
  // thing.
  Descriptor PeerProcess() const;

  // Sends it now or, when the other side is slow, with a later Flush(). The descriptors stay the
  // caller's, who keeps them open until then. kUnavailable: the connection is over.
  Status Send(std::span<const std::byte> frame, std::span<const int> descriptors = {});
  Status Flush();
  size_t unsent_frames() const { return unsent_.size(); }

  // The next frame. kNotFound: there is none yet. kUnavailable: the connection is over. kInvalid:
  // it is no frame. Descriptors that came along wait in TakeDescriptor(), in their order.
  Status Receive(std::vector<std::byte>* frame, bool with_descriptors);
  Descriptor TakeDescriptor();

  // The other side sees the end of the stream; what it sends is still received.
  void EndSending();

 private:
  struct Unsent {
    std::vector<std::byte> bytes;
    size_t sent = 0;
    std::vector<int> descriptors;
  };

  Status FillInput(bool with_descriptors);

  Descriptor socket_;
  std::deque<Unsent> unsent_;
  std::vector<std::byte> input_;
  std::deque<Descriptor> descriptors_;
};

// Only the node's own user may connect where `private_to_user`. An old socket file that nobody
// listens on is replaced; kBusy: another process listens there.
Result<Descriptor> ListenOn(const std::string& path, bool private_to_user);
// Invalid: nobody waits.
Descriptor AcceptOn(const Descriptor& listener);
Result<Descriptor> ConnectTo(const std::string& path);

}  // namespace aquifer
