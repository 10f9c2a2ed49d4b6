// Keys come as text from command lines, HTTP and object names.
#include <cstdint>
#include <string_view>

#include "aquifer/key.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto key = aquifer::KeyFromHex(text);
  if (!key.ok()) {
    AQ_CHECK(key.status().code() == aquifer::Code::kInvalid);
    return 0;
  }
  // The same text is written back as was read, but for the case of letters.
  const std::string hex = key->ToHex();
  AQ_CHECK(hex.size() == size);
  for (size_t i = 0; i < size; ++i)
    AQ_CHECK(hex[i] == (text[i] >= 'A' && text[i] <= 'F' ? text[i] + 32 : text[i]));
  return 0;
}
