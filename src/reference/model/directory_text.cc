#include "reference/model/directory_text.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/hash_mix.h"
#include "reference/model/constructed.h"

namespace aquifer::reference {
namespace {

constexpr size_t kEntryTokens = 3;  // Name, number, semicolon.

template <class T>
void Shuffle(std::vector<T>* values, uint64_t* random) {
  for (size_t i = values->size(); i-- > 1;) {
    std::swap((*values)[i], (*values)[SplitMix(random) % (i + 1)]);
  }
}

}  // namespace

DirectoryText::DirectoryText(size_t tokens, uint64_t seed) {
  uint64_t random = seed;
  std::vector<uint32_t> names(kConstructedNames);
  std::iota(names.begin(), names.end(), ConstructedWords::kFirstName);
  Shuffle(&names, &random);
  text_ = "directory\n";
  const size_t count = std::min<size_t>(tokens / kEntryTokens, names.size());
  for (size_t i = 0; i < count; ++i) {
    const auto number = static_cast<uint32_t>(SplitMix(&random) % kConstructedNumbers);
    entries_.push_back({ConstructedWords::Word(names[i]), fmt::format("{}", number)});
    text_ += fmt::format("{} {} ;\n", entries_[i].name, entries_[i].number);
  }
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0);
  Shuffle(&order_, &random);
}

DirectoryQuestion DirectoryText::Ask(size_t lookups) {
  AQ_CHECK(asked_ + lookups <= order_.size());
  DirectoryQuestion question{.text = "ask", .answer = {}};
  for (size_t i = 0; i < lookups; ++i) {
    const Entry& entry = entries_[order_[asked_ + i]];
    question.text += " " + entry.name;
    // Each name is repeated before its number, except the first, which ends the question.
    question.answer += i == 0 ? " " : " " + entry.name + " ";
    question.answer += entry.number;
  }
  question.text += " . " + entries_[order_[asked_]].name;
  question.answer += " .";
  asked_ += lookups;
  return question;
}

std::string DirectoryText::ExamplePrompt() const {
  std::string text = "directory";
  for (size_t i = 0; i < 3; ++i) {
    text += fmt::format(" {} {} ;", entries_[i].name, entries_[i].number);
  }
  return text +
         fmt::format(" ask {} {} . {}", entries_[1].name, entries_[0].name, entries_[1].name);
}

}  // namespace aquifer::reference
