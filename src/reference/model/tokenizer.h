// Text to tokens and back. There are two: bytes, for any model whose vocabulary has room for them,
// and the words of the constructed model. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"

namespace aquifer::reference {

struct ChatMessage {
  std::string role{};
  std::string content{};
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // A whole prompt, with what every text begins with. kInvalid: it has a word that nobody knows.
  virtual Result<std::vector<uint32_t>> Encode(std::string_view text) const = 0;
  virtual Result<std::vector<uint32_t>> EncodeChat(std::span<const ChatMessage> messages) const = 0;
  // What one generated token adds to the text. Of bytes: it may be part of a character.
  virtual std::string Decode(uint32_t token) const = 0;
  // Whether an answer ends with this token; where it is `silent`, it is no part of the text.
  virtual bool IsEnd(uint32_t token, bool* silent) const = 0;
};

// Token N is byte N. 256 begins a text, 257 ends it.
inline constexpr uint32_t kByteTokens = 258;
std::unique_ptr<Tokenizer> NewByteTokenizer();

// Words are parted by white space; signs may stick to the word before. The messages of a chat
// follow each other: the constructed model knows no roles.
std::unique_ptr<Tokenizer> NewWordTokenizer();

}  // namespace aquifer::reference
