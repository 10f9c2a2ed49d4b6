// A network that fails at a test's command: a TCP proxy on the loopback between a client and a
// server there. It knows no protocol; faults are told in bytes. It counts the bytes that pass.
//
// Has a thread of its own, which does everything; any thread may call. The server need not be there
// yet: a connection to one that is not there is reset.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

namespace aquifer {

struct ProxyFaults {
  static constexpr uint64_t kNever = UINT64_MAX;

  bool refuse = false;  // Resets every connection, those that are open as well.
  bool stall = false;   // Nothing passes until other faults are set; nothing is lost.
  std::chrono::milliseconds delay{0};  // That every piece of an answer waits.

  // Bytes of one connection and direction, counted from when these faults were set.
  uint64_t cut_requests_after = kNever;  // Resets the connection when so many have passed.
  uint64_t cut_answers_after = kNever;
  uint64_t end_answers_after = kNever;  // Ends it in good order, as a server that is done does.
  uint64_t flip_answer_byte = kNever;   // Turns one bit of this byte around.
  uint64_t times = kNever;              // How often any of the four happens.
};

class FaultProxy {
 public:
  explicit FaultProxy(uint16_t server_port);
  ~FaultProxy();  // Resets what is open.
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  uint16_t port() const;

  // In place of those before. In force when it returns; ProxyFaults{} lets everything pass.
  void Set(const ProxyFaults& faults);

  // Counts up to the last Set(), and perhaps more.
  uint64_t connections() const;      // Ever taken, also to be refused.
  uint64_t request_bytes() const;    // Passed on.
  uint64_t answer_bytes() const;     // Passed on.
  uint64_t faults_happened() const;  // Cuts, ends and flips.

 private:
  class Loop;

  const std::unique_ptr<Loop> loop_;
};

// A port of the loopback on which nobody listened a moment ago, for a server that must be told one.
uint16_t FreePort();

}  // namespace aquifer
