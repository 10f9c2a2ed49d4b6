// The text of an answer as it grows token by token: whole characters only, and nothing of what may
// turn out to be a stop word. One thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace aquifer::reference {

class AnswerText {
 public:
  explicit AnswerText(std::vector<std::string> stop_words) : stop_words_(std::move(stop_words)) {}

  // What can be shown now. With a stop word, stopped() is true and nothing comes any more.
  std::string Append(std::string_view piece);
  // What was held back.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  size_t HeldBack() const;

  const std::vector<std::string> stop_words_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace aquifer::reference
