// Parses and checks the requests of OpenAI's API. Unknown fields are ignored, as clients send many.
// Known fields that this server does not support are refused by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "reference/engine/engine.h"
#include "reference/model/tokenizer.h"

namespace aquifer::reference {

struct OpenAiRequest {
  bool chat = false;
  bool stream = false;
  bool usage_in_stream = false;
  std::vector<std::string> stop_words{};
  GenerateRequest generate{};  // Without callbacks.
};

// An error in OpenAI's terms.
struct OpenAiError {
  unsigned status = 400;
  std::string message{};
  std::string type = "invalid_request_error";
  std::string param{};  // The field; may be empty.
  std::string code{};   // May be empty.

  std::string Body() const;
};

struct OpenAiRules {
  std::string model{};  // The served model.
  size_t default_chat_tokens = 1024;
};

// Returns true if `request` is filled in; otherwise sets `error`.
bool ParseOpenAiRequest(std::string_view body, bool chat, const OpenAiRules& rules,
                        const Tokenizer& tokenizer, OpenAiRequest* request, OpenAiError* error);

}  // namespace aquifer::reference
