#include "reference/server/openai_request.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "reference/model/shallow_json.h"

namespace aquifer::reference {
namespace {

using nlohmann::json;

constexpr size_t kMaxStopWords = 4;
constexpr size_t kDefaultTokens = 16;

// Reads one body. A mistake in it is thrown, and caught only in ParseOpenAiRequest().
class Reader {
 public:
  Reader(const json& body, const OpenAiRules& rules, const Tokenizer& tokenizer)
      : body_(body), rules_(rules), tokenizer_(tokenizer) {}

  OpenAiRequest Read(bool chat) {
    CheckModel();
    OpenAiRequest request;
    request.chat = chat;
    request.stream = Flag(body_, "stream", false);
    if (const json* options = Find(body_, "stream_options")) {
      if (!options->is_object()) Refuse("stream_options", "it must be an object");
      request.usage_in_stream = Flag(*options, "include_usage", false);
    }
    request.stop_words = StopWords();
    GenerateRequest& generate = request.generate;
    generate.prompt = chat ? ChatPrompt() : Prompt();
    generate.max_tokens = Count("max_tokens", chat ? rules_.default_chat_tokens : kDefaultTokens);
    if (chat) generate.max_tokens = Count("max_completion_tokens", generate.max_tokens);
    generate.temperature = static_cast<float>(Number("temperature", 1, 0, 2));
    generate.top_p = static_cast<float>(Number("top_p", 1, 0, 1));
    generate.seed = static_cast<uint64_t>(Integer("seed", 0));
    generate.session = Text(body_, "user");
    generate.cache_salt = Text(body_, "cache_salt");
    if (Count("n", 1) != 1) Refuse("n", "only one answer at a time is supported");
    for (const char* name : {"echo", "logprobs"}) {
      if (const json* value = Find(body_, name); value != nullptr && *value != false) {
        Refuse(name, "it is not supported");
      }
    }
    ReadOwn(&generate);
    return request;
  }

 private:
  [[noreturn]] static void Refuse(const std::string& field, const std::string& why) {
    throw OpenAiError{.status = 400, .message = field + ": " + why, .param = field};
  }

  static const json* Find(const json& object, const char* name) {
    const auto found = object.find(name);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  static bool Flag(const json& object, const char* name, bool otherwise) {
    const json* const value = Find(object, name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) Refuse(name, "it must be true or false");
    return value->get<bool>();
  }
  static std::string Text(const json& object, const char* name) {
    const json* const value = Find(object, name);
    if (value == nullptr) return {};
    if (!value->is_string()) Refuse(name, "it must be a string");
    std::string text = value->get<std::string>();
    if (text.size() > 256) Refuse(name, "it has more than 256 bytes");
    return text;
  }
  int64_t Integer(const char* name, int64_t otherwise) const {
    const json* const value = Find(body_, name);
    if (value == nullptr) return otherwise;
    if (!value->is_number_integer()) Refuse(name, "it must be an integer");
    return value->get<int64_t>();
  }
  size_t Count(const char* name, size_t otherwise) const {
    const int64_t count = Integer(name, static_cast<int64_t>(otherwise));
    if (count < 1) Refuse(name, "it must be at least 1");
    return static_cast<size_t>(count);
  }
  double Number(const char* name, double otherwise, double least, double most) const {
    const json* const value = Find(body_, name);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) Refuse(name, "it must be a number");
    const auto number = value->get<double>();
    if (!(number >= least && number <= most)) {
      Refuse(name, fmt::format("it must be from {} to {}", least, most));
    }
    return number;
  }

  void CheckModel() const {
    const std::string model = Text(body_, "model");
    if (model.empty()) Refuse("model", "which model? This server has " + rules_.model);
    if (model == rules_.model) return;
    throw OpenAiError{
        .status = 404,
        .message = fmt::format("there is no model '{}' here; there is '{}'", model, rules_.model),
        .param = "model",
        .code = "model_not_found"};
  }

  std::vector<std::string> StopWords() const {
    const json* const stop = Find(body_, "stop");
    if (stop == nullptr) return {};
    std::vector<std::string> words;
    for (const json& word : stop->is_array() ? *stop : json::array({*stop})) {
      if (!word.is_string() || word.get_ref<const std::string&>().empty()) {
        Refuse("stop", "it must be a string, or several, and none empty");
      }
      words.push_back(word.get<std::string>());
    }
    if (words.size() > kMaxStopWords) Refuse("stop", "there may be at most 4");
    return words;
  }

  static std::vector<uint32_t> Encoded(Result<std::vector<uint32_t>> tokens, const char* field) {
    if (!tokens.ok()) Refuse(field, tokens.status().message());
    return *std::move(tokens);
  }

  std::vector<uint32_t> Prompt() const {
    const json* prompt = Find(body_, "prompt");
    if (prompt == nullptr) Refuse("prompt", "it is missing");
    if (prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number()) {
      prompt = &prompt->front();
    }
    if (prompt->is_string()) {
      return Encoded(tokenizer_.Encode(prompt->get_ref<const std::string&>()), "prompt");
    }
    std::vector<uint32_t> tokens;
    if (!prompt->is_array()) Refuse("prompt", "it must be a string or an array of tokens");
    for (const json& token : *prompt) {
      if (!token.is_number_unsigned() || token.get<uint64_t>() > UINT32_MAX) {
        Refuse("prompt", "only one prompt is taken: a string, or an array of token numbers");
      }
      tokens.push_back(token.get<uint32_t>());
    }
    return tokens;
  }

  static std::string Content(const json& message) {
    const json* const content = Find(message, "content");
    if (content == nullptr) return {};
    if (content->is_string()) return content->get<std::string>();
    if (!content->is_array()) Refuse("messages", "content must be a string or parts of text");
    std::string text;
    for (const json& part : *content) {
      if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text") ||
          !part["text"].is_string()) {
        Refuse("messages", "only parts of text are supported");
      }
      text += part["text"].get<std::string>();
    }
    return text;
  }

  std::vector<uint32_t> ChatPrompt() const {
    const json* const messages = Find(body_, "messages");
    if (messages == nullptr || !messages->is_array() || messages->empty()) {
      Refuse("messages", "it must be an array of at least one message");
    }
    std::vector<ChatMessage> read;
    for (const json& message : *messages) {
      if (!message.is_object()) Refuse("messages", "each must be an object");
      const std::string role = Text(message, "role");
      if (role.empty()) Refuse("messages", "each must have a role");
      read.push_back({.role = role, .content = Content(message)});
    }
    return Encoded(tokenizer_.EncodeChat(read), "messages");
  }

  // The fields that only this server has.
  void ReadOwn(GenerateRequest* generate) const {
    const json* const own = Find(body_, "aquifer");
    if (own == nullptr) return;
    if (!own->is_object()) Refuse("aquifer", "it must be an object");
    generate->recall = Flag(*own, "recall", true);
    generate->store = Flag(*own, "store", true);
    if (const std::string session = Text(*own, "session"); !session.empty()) {
      generate->session = session;
    }
  }

  const json& body_;
  const OpenAiRules& rules_;
  const Tokenizer& tokenizer_;
};

}  // namespace

std::string OpenAiError::Body() const {
  json error = {{"message", message}, {"type", type}};
  error["param"] = param.empty() ? json() : json(param);
  error["code"] = code.empty() ? json() : json(code);
  return json{{"error", error}}.dump(-1, ' ', false, json::error_handler_t::replace);
}

bool ParseOpenAiRequest(std::string_view body, bool chat, const OpenAiRules& rules,
                        const Tokenizer& tokenizer, OpenAiRequest* request, OpenAiError* error) {
  const json parsed = ParseShallowObject(body);
  if (!parsed.is_object()) {
    *error = {.message = fmt::format("the body must be a JSON object, at most {} brackets deep",
                                     kMaxJsonDepth)};
    return false;
  }
  try {
    *request = Reader(parsed, rules, tokenizer).Read(chat);
    return true;
  } catch (const OpenAiError& wrong) {
    *error = wrong;
  } catch (const json::exception& wrong) {
    *error = {.message = wrong.what()};
  }
  return false;
}

}  // namespace aquifer::reference
