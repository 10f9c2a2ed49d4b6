// Names that `top -H`, debuggers and crash reports show for our threads.
#pragma once

#include <string>

namespace aquifer {

// The kernel keeps the first 15 characters.
void NameThisThread(const std::string& name);

}  // namespace aquifer
