#include "base/descriptor.h"

#include <unistd.h>

#include <utility>

namespace aquifer {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.Take();
  }
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int Descriptor::Take() { return std::exchange(fd_, -1); }

}  // namespace aquifer
