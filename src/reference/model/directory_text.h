// Makes a document for the constructed model: a directory of made-up names and numbers, with
// questions whose answers are known. For the demonstration and for tests. The same seed gives the
// same text. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace aquifer::reference {

struct DirectoryQuestion {
  std::string text;
  std::string answer;  // The text that the model has to write.
};

class DirectoryText {
 public:
  // As many entries as fit into `tokens`.
  DirectoryText(size_t tokens, uint64_t seed);

  const std::string& text() const { return text_; }
  size_t entries() const { return entries_.size(); }

  // Asks for names that were not asked for before.
  DirectoryQuestion Ask(size_t lookups);
  // A whole short prompt: a directory of three entries and a question.
  std::string ExamplePrompt() const;

 private:
  struct Entry {
    std::string name;
    std::string number;
  };

  std::vector<Entry> entries_;
  std::vector<size_t> order_;  // The order in which names are asked for.
  size_t asked_ = 0;
  std::string text_;
};

}  // namespace aquifer::reference
