// AnswerText is the text of an answer that grows token by token. It shows whole characters only,
// and nothing that may become a stop word. One thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace aquifer::reference {

class AnswerText {
 public:
  explicit AnswerText(std::vector<std::string> stop_words) : stop_words_(std::move(stop_words)) {}

  // Returns the text that can be shown now. After a stop word, stopped() is true and no text
  // follows.
  std::string Append(std::string_view piece);
  // Returns the text that was held back.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  size_t HeldBack() const;

  const std::vector<std::string> stop_words_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace aquifer::reference
