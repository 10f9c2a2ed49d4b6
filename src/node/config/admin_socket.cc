#include "node/config/admin_socket.h"

#include <string>
#include <string_view>

namespace aquifer {

std::string AdminSocketBeside(const std::string& node_socket) {
  constexpr std::string_view kEnd = ".sock";
  std::string stem = node_socket;
  if (stem.ends_with(kEnd)) stem.resize(stem.size() - kEnd.size());
  return stem + ".admin.sock";
}

}  // namespace aquifer
