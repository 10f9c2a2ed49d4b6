#include "reference/server/answer_text.h"

#include <algorithm>
#include <utility>

namespace aquifer::reference {
namespace {

// How many bytes at the end are an incomplete character.
size_t UnfinishedCharacter(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte < 0xC0) continue;  // The middle of a character.
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

std::string AnswerText::Append(std::string_view piece) {
  if (stopped_) return {};
  pending_ += piece;
  size_t end = std::string::npos;
  for (const std::string& word : stop_words_) end = std::min(end, pending_.find(word));
  if (end != std::string::npos) {
    stopped_ = true;
    pending_.resize(end);
    return std::exchange(pending_, {});
  }
  const size_t shown = pending_.size() - HeldBack();
  std::string text = pending_.substr(0, shown);
  pending_.erase(0, shown);
  return text;
}

size_t AnswerText::HeldBack() const {
  size_t held = UnfinishedCharacter(pending_);
  for (const std::string& word : stop_words_) {
    for (size_t length = std::min(word.size() - 1, pending_.size()); length > held; --length) {
      if (pending_.ends_with(word.substr(0, length))) held = length;
    }
  }
  return held;
}

std::string AnswerText::Finish() { return std::exchange(pending_, {}); }

}  // namespace aquifer::reference
