#include "reference/model/tokenizer.h"

#include <fmt/format.h>

#include <map>

#include "reference/model/constructed.h"

namespace aquifer::reference {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  Result<std::vector<uint32_t>> Encode(std::string_view text) const override {
    std::vector<uint32_t> tokens = {kBeginning};
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }

  Result<std::vector<uint32_t>> EncodeChat(std::span<const ChatMessage> messages) const override {
    std::string text;
    for (const ChatMessage& message : messages) {
      text += message.role + ": " + message.content + "\n";
    }
    return Encode(text + "assistant:");
  }

  std::string Decode(uint32_t token) const override {
    return token < 256 ? std::string(1, static_cast<char>(token)) : std::string();
  }

  bool IsEnd(uint32_t token, bool* silent) const override {
    *silent = true;
    return token == kEnd;
  }

 private:
  static constexpr uint32_t kBeginning = 256;
  static constexpr uint32_t kEnd = 257;
};

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool IsSign(char c) { return c == '.' || c == ';' || c == ','; }

class WordTokenizer final : public Tokenizer {
 public:
  WordTokenizer() {
    for (uint32_t token = 1; token < ConstructedWords::kCount; ++token) {
      tokens_.emplace(ConstructedWords::Word(token), token);
    }
  }

  Result<std::vector<uint32_t>> Encode(std::string_view text) const override {
    std::vector<uint32_t> tokens = {ConstructedWords::kBeginning};
    AQ_RETURN_IF_ERROR(Append(text, &tokens));
    return tokens;
  }

  Result<std::vector<uint32_t>> EncodeChat(std::span<const ChatMessage> messages) const override {
    std::vector<uint32_t> tokens = {ConstructedWords::kBeginning};
    for (const ChatMessage& message : messages) {
      AQ_RETURN_IF_ERROR(Append(message.content, &tokens));
    }
    return tokens;
  }

  std::string Decode(uint32_t token) const override { return " " + ConstructedWords::Word(token); }

  bool IsEnd(uint32_t token, bool* silent) const override {
    *silent = token == ConstructedWords::kBeginning;
    return *silent || token == ConstructedWords::kFullStop;
  }

 private:
  Status Append(std::string_view text, std::vector<uint32_t>* tokens) const {
    size_t at = 0;
    while (at < text.size()) {
      if (IsSpace(text[at])) {
        ++at;
        continue;
      }
      size_t end = at + 1;
      if (!IsSign(text[at])) {
        while (end < text.size() && !IsSpace(text[end]) && !IsSign(text[end])) ++end;
      }
      const auto found = tokens_.find(text.substr(at, end - at));
      if (found == tokens_.end()) {
        return Status(Code::kInvalid,
                      fmt::format("this model does not know the word '{}': it has names like "
                                  "{}, numbers from 0 to {}, and: . ; , ask directory",
                                  text.substr(at, std::min<size_t>(end - at, 40)),
                                  ConstructedWords::Word(ConstructedWords::kFirstName),
                                  kConstructedNumbers - 1));
      }
      tokens->push_back(found->second);
      at = end;
    }
    return Status();
  }

  std::map<std::string, uint32_t, std::less<>> tokens_;
};

}  // namespace

std::unique_ptr<Tokenizer> NewByteTokenizer() { return std::make_unique<ByteTokenizer>(); }
std::unique_ptr<Tokenizer> NewWordTokenizer() { return std::make_unique<WordTokenizer>(); }

}  // namespace aquifer::reference
