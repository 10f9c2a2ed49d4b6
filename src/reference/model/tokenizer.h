// A Tokenizer turns text into tokens and back. There are two: bytes, for any model whose vocabulary
// has room for them, and the words of the constructed model. Immutable; any thread.
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

  // Encodes a whole prompt, with the token that begins every text. Returns kInvalid for an unknown
  // word.
  virtual Result<std::vector<uint32_t>> Encode(std::string_view text) const = 0;
  virtual Result<std::vector<uint32_t>> EncodeChat(std::span<const ChatMessage> messages) const = 0;
  // The text of one generated token. For the byte tokenizer, it may be part of a character.
  virtual std::string Decode(uint32_t token) const = 0;
  // Returns true if an answer ends with this token. If it is `silent`, it is no part of the text.
  virtual bool IsEnd(uint32_t token, bool* silent) const = 0;
};

// Token N is byte N. 256 begins a text, 257 ends it.
inline constexpr uint32_t kByteTokens = 258;
std::unique_ptr<Tokenizer> NewByteTokenizer();

// White space separates words; signs may stick to the word before. Messages of a chat are joined:
// the constructed model knows no roles.
std::unique_ptr<Tokenizer> NewWordTokenizer();

}  // namespace aquifer::reference
