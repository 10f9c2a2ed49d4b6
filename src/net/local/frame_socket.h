// A Unix stream socket that carries frames, some of them with descriptors. Nothing here waits.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
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

  // From now on only a handful of small frames are on their way, whoever does not read. Descriptors
  // that nobody has read count against all that this user's processes send.
  void KeepFewOnTheirWay();
  // Sends it now or, when the other side is slow, with a later Flush(). The descriptors stay the
  // caller's, who keeps them open until then. kUnavailable: the connection is over.
  Status Send(std::span<const std::byte> frame, std::span<const int> descriptors = {});
  Status Flush();
  size_t unsent_frames() const { return unsent_.size(); }
  uint64_t sent_frames() const { return sent_frames_; }  // Ever, whole and with their descriptors.
  // What is unsent waits for descriptors to be taken by whoever they were sent to, not for room:
  // the socket may be writable all the while. Try again after a time.
  bool too_many_descriptors() const { return too_many_descriptors_; }

  // The next frame. kNotFound: there is none yet. kUnavailable: the connection is over. kInvalid:
  // it is no frame, or descriptors came where there are to be none; those are not taken.
  // Descriptors that came along wait in TakeDescriptor(), in their order.
  Status Receive(std::vector<std::byte>* frame, bool with_descriptors);
  Descriptor TakeDescriptor();
  // Bytes that were received behind the last frame.
  size_t bytes_left() const { return input_.size(); }

  enum class News : uint8_t { kNone, kBytes, kEnd };
  // What there is to receive. Nothing is taken, and no descriptor becomes ours.
  News Look() const;

  // The other side sees the end of the stream; what it sends is still received.
  void EndSending();

  // Closes it without ever waiting. What the other side sent and nobody received may hold files
  // whose closing takes for ever, so a thread of its own does that, and is interrupted when it
  // takes long; `closing` counts those.
  static void Discard(FrameSocket socket, const std::shared_ptr<std::atomic<uint32_t>>& closing);

 private:
  struct Unsent {
    std::vector<std::byte> bytes;
    size_t sent = 0;
    std::vector<int> descriptors;
  };

  Status FillInput(bool with_descriptors);
  // How many bytes there are, none of which came with a descriptor.
  Result<size_t> PeekBytes() const;
  // Nothing of the other side's is in it, and nothing can come any more.
  bool EndAndCheckEmpty();

  Descriptor socket_;
  bool too_many_descriptors_ = false;
  std::deque<Unsent> unsent_;
  uint64_t sent_frames_ = 0;
  std::vector<std::byte> input_;
  std::deque<Descriptor> descriptors_;
};

// Only the node's own user may connect where `private_to_user`. Whoever connects can send no
// descriptors, where the kernel can forbid it. An old socket file that nobody
// listens on is replaced; kBusy: another process listens there.
Result<Descriptor> ListenOn(const std::string& path, bool private_to_user);
Status SetSocketMode(const std::string& path, bool private_to_user);
// kNotFound: nobody waits. kBusy: this process or the system has no descriptor or memory left, and
// the listener stays ready meanwhile.
Result<Descriptor> AcceptOn(const Descriptor& listener);
Result<Descriptor> ConnectTo(const std::string& path);

}  // namespace aquifer
