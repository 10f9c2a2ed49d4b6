// WakeEvent is an eventfd that the caller's thread and the link thread wake each other with.
#pragma once

#include "base/descriptor.h"

namespace aquifer {

Descriptor NewWakeEvent();
void Signal(const Descriptor& event);
void Clear(const Descriptor& event);

}  // namespace aquifer
