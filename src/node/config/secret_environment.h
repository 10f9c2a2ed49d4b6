// What the environment tells a node that nobody else should read: the master key and the keys to
// buckets. Taken out of it once, at the start, so that neither children nor /proc/PID/environ have
// them, and wiped in the end.
#pragma once

#include <map>
#include <string>

namespace aquifer {

class SecretEnvironment {
 public:
  SecretEnvironment() = default;  // There are none.
  ~SecretEnvironment();
  SecretEnvironment(SecretEnvironment&&) noexcept = default;
  SecretEnvironment& operator=(SecretEnvironment&&) = delete;

  // Of this process. Before there are other threads.
  static SecretEnvironment Take();

  // What was taken, else what the environment has; null: neither has it. Good for as long as this
  // object is.
  const char* Get(const char* name) const;

 private:
  std::map<std::string, std::string> taken_;
};

}  // namespace aquifer
