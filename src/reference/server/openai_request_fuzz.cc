// Takes any bytes as the body of a request. They are parsed or refused, and every parsed value is
// within its bounds.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "reference/model/tokenizer.h"
#include "reference/server/openai_request.h"

using namespace aquifer::reference;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<Tokenizer> kTokenizer = NewByteTokenizer();
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const bool chat : {false, true}) {
    OpenAiRequest request;
    OpenAiError error;
    if (ParseOpenAiRequest(body, chat, {.model = "m"}, *kTokenizer, &request, &error)) {
      AQ_CHECK(request.generate.max_tokens >= 1);
      AQ_CHECK(request.generate.temperature >= 0 && request.generate.temperature <= 2);
      AQ_CHECK(request.generate.top_p >= 0 && request.generate.top_p <= 1);
      AQ_CHECK(request.stop_words.size() <= 4);
    } else {
      AQ_CHECK(error.status >= 400 && !error.Body().empty());
    }
  }
  return 0;
}
