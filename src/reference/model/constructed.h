// A model whose weights are set by hand so that it looks things up in its context, exactly. In a
// directory
//
//   Bakomi 417 ; Tireso 88 ; ...   ask Tireso Bakomi . Tireso
//
// it goes on "88 Bakomi 417 .", however long ago the entries stood. It was not trained, and needs
// no special code: these are weights for the same decoder as any other model.
//
// How: every word has a code of 64 signs, and any two codes differ in 16 to 48 of them. In the
// first layer a head attends to the token before (rotary positions peak at a distance of one) and
// copies its code. In the second layer two heads that share their keys match codes. At a name, the
// first head looks for the number behind the same name. At a number, the second head looks in the
// question for the name that the number was for, and finds the name or full stop behind it. Kinds
// of words keep the heads apart. If nothing matches, they attend to the first token, whose value is
// zero. The feed-forward parts have zero weights.
//
// A name must occur only once in the directory. One text must not ask for it twice with different
// successors.
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
  // The first token of every text. As an answer: "nothing found".
  static constexpr uint32_t kBeginning = 0;
  static constexpr uint32_t kFullStop = 1;  // Ends a question's list, and an answer.
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
