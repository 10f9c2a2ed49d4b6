// A Unix stream socket that carries frames, some of them with descriptors. No function here waits.
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
  // A descriptor that becomes readable when the peer's process has ended. Not valid if the kernel
  // has no such descriptors.
  Descriptor PeerProcess() const;

  // Lets only a few small frames queue up for a peer that does not read. Descriptors in unread
  // frames count against the limit of all processes of this user.
  void KeepFewOnTheirWay();
  // Sends the frame now or, if the other side is slow, with a later Flush(). The caller keeps its
  // descriptors open until then. Returns kUnavailable if the connection is over.
  Status Send(std::span<const std::byte> frame, std::span<const int> descriptors = {});
  Status Flush();
  size_t unsent_frames() const { return unsent_.size(); }
  // Since the start; whole frames with their descriptors.
  uint64_t sent_frames() const { return sent_frames_; }
  // Returns true if unsent frames wait for receivers to take earlier descriptors, and not for room.
  // The socket may be writable all the while, so try again after a time.
  bool too_many_descriptors() const { return too_many_descriptors_; }

  // Receives the next frame. kNotFound: there is none yet. kUnavailable: the connection is over.
  // kInvalid: the bytes are no frame, or descriptors came where none are allowed; those are not
  // taken. Descriptors that came with it wait in TakeDescriptor(), in their order.
  Status Receive(std::vector<std::byte>* frame, bool with_descriptors);
  Descriptor TakeDescriptor();
  // How many bytes were received behind the last frame.
  size_t bytes_left() const { return input_.size(); }

  enum class News : uint8_t { kNone, kBytes, kEnd };
  // Reports what there is to receive. Receives nothing, so no descriptor becomes ours.
  News Look() const;

  // Ends the stream to the other side; frames from it are still received.
  void EndSending();

  // Closes the socket without ever waiting. Unread frames may hold files whose closing takes for
  // ever. A thread of its own closes them, and is interrupted when it takes long. `closing` counts
  // such threads.
  static void Discard(FrameSocket socket, const std::shared_ptr<std::atomic<uint32_t>>& closing);

 private:
  struct Unsent {
    std::vector<std::byte> bytes;
    size_t sent = 0;
    std::vector<int> descriptors;
  };

  Status FillInput(bool with_descriptors);
  // How many bytes can be received before the next descriptor.
  Result<size_t> PeekBytes() const;
  // Returns true if the socket holds nothing of the other side's, and nothing more can come.
  bool EndAndCheckEmpty();

  Descriptor socket_;
  bool too_many_descriptors_ = false;
  std::deque<Unsent> unsent_;
  uint64_t sent_frames_ = 0;
  std::vector<std::byte> input_;
  std::deque<Descriptor> descriptors_;
};

// With `private_to_user`, only the node's own user may connect. Clients can send no descriptors if
// the kernel can forbid it. An old socket file that nobody listens on is replaced. Returns kBusy if
// another process listens there.
Result<Descriptor> ListenOn(const std::string& path, bool private_to_user);
Status SetSocketMode(const std::string& path, bool private_to_user);
// Returns kNotFound if no client waits. Returns kBusy if this process or the system has no
// descriptor or memory left; the listener stays ready meanwhile.
Result<Descriptor> AcceptOn(const Descriptor& listener);
Result<Descriptor> ConnectTo(const std::string& path);

}  // namespace aquifer
