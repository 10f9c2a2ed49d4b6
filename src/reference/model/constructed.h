// A model whose weights are set by hand so that it looks things up in its context, exactly: in a
// directory
//
//     Bakomi 417 ; Tireso 88 ; ...   ask Tireso Bakomi . Tireso
//
// it goes on "88 Bakomi 417 .", however long ago the entries stood. There is no training in it and
// no special code beside it: it is weights for the same decoder as any other model.
//
// How: every word has a code of 64 signs, and any two codes differ in 16 to 48 of them. In the
// first layer a head attends to the token before (rotary positions peak at a distance of one) and
// copies its code. In the second layer two heads that share their keys match codes. The one looks,
// at a name, for a number behind the same name; the other, at a number, for the name or full stop
// that stands in the question behind the name that the number was for. The heads are kept apart by
// kinds of words, and where nothing matches they attend to the first token, whose value is zero.
// The feed-forward parts have nothing to do; their weights are zero.
//
// A name must stand only once in the directory, and must not be asked for twice in one text with
// different successors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reference/model/weights.h"

namespace aquifer::reference {

inline constexpr uint32_t kConstructedNames = 12'288;
inline constexpr uint32_t kConstructedNumbers = 1'000;

// The words of the constructed model, by token: the beginning, some signs, names, numbers.
class ConstructedWords {
 public:
  static constexpr uint32_t kBeginning = 0;  // First of every text. As an answer: "nothing found".
  static constexpr uint32_t kFullStop = 1;   // Ends a question's list, and an answer.
  static constexpr uint32_t kSemicolon = 2;
  static constexpr uint32_t kAsk = 3;
  static constexpr uint32_t kDirectory = 4;
  static constexpr uint32_t kFirstName = 8;
  static constexpr uint32_t kFirstNumber = kFirstName + kConstructedNames;
  static constexpr uint32_t kCount = kFirstNumber + kConstructedNumbers;

  static std::string Word(uint32_t token);
};

ModelShape ConstructedShape();
std::shared_ptr<const Weights> ConstructedWeights();

}  // namespace aquifer::reference
