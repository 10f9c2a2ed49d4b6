#include "testing/cache/served_node.h"

#include <optional>

namespace aquifer {

ServedNode::ServedNode(const std::string& program, const std::vector<std::string>& arguments,
                       const std::vector<std::string>& wrapper) {
  std::vector<std::string> words = {"setpriv", "--pdeathsig", "KILL"};
  words.insert(words.end(), wrapper.begin(), wrapper.end());
  words.insert(words.end(), {program, "serve"});
  words.insert(words.end(), arguments.begin(), arguments.end());
  process_ = ChildProcess::StartCommand(words);
}

bool ServedNode::AwaitReady() { return AwaitLine(" ready on "); }

bool ServedNode::AwaitLine(const std::string& text) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    const std::optional<std::string> line = process_->ReadLine(left);
    if (!line.has_value()) return false;
    said_ += *line + "\n";
    if (line->find(text) != std::string::npos) return true;
  }
}

}  // namespace aquifer
