// One line on standard error that says what a long command is at, and is wiped when it is done.
// Where standard error is no terminal it shows nothing, so that logs and pipes stay clean.
#pragma once

#include <string_view>

namespace aquifer {

class Progress {
 public:
  Progress();  // Shown when standard error is a terminal.
  explicit Progress(bool shown) : shown_(shown) {}
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(std::string_view line);
  void Clear();

 private:
  const bool shown_;
  bool dirty_ = false;
};

}  // namespace aquifer
