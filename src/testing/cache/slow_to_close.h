// A file whose closing takes for ever: a connection that lingers until its other end has read all
// of it, which it never does.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/descriptor.h"

namespace aquifer {

class SlowToClose {
 public:
  SlowToClose() {
    const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    AQ_CHECK(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    AQ_CHECK(::listen(listener.get(), 1) == 0);
    AQ_CHECK(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
    slow_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    AQ_CHECK(::connect(slow_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    other_end_ = Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    AQ_CHECK(other_end_.valid());
    const std::vector<std::byte> bytes(size_t{1} << 20);
    while (::send(slow_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    const linger wait{.l_onoff = 1, .l_linger = 600};
    AQ_CHECK(::setsockopt(slow_.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof(wait)) == 0);
  }
  // To be closed by the last that has it, not by us.
  Descriptor Take() { return std::move(slow_); }

 private:
  Descriptor slow_;
  Descriptor other_end_;
};

// Closes it where nobody waits for that.
inline void CloseElsewhere(Descriptor slow) {
  std::thread([slow = std::move(slow)] {}).detach();
}

}  // namespace aquifer
