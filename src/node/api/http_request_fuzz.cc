// What a request says of itself, after the HTTP parser is done with it: its target, its JSON, and
// whether it is let in. None of it may crash, and no web page's request may pass.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "node/api/http_guard.h"
#include "node/api/http_message.h"
#include "node/api/json_body.h"
#include "tenant/token.h"

// The first line is the target, the second the Host, the third the Authorization; the rest is the
// body.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aquifer;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto take_line = [&rest] {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    return std::string(line);
  };
  HttpRequest request;
  request.method = "POST";
  request.content_type = "application/json";
  const bool parsed = ParseTarget(take_line(), &request).ok();
  AQ_CHECK(!parsed || request.path.starts_with('/'));
  request.host = take_line();
  request.authorization = take_line();

  HttpRules rules;
  rules.admin_token_sha256 = DigestOfToken("secret");
  const bool ours = !RefuseCrossSite(request, HttpNeed::kReading, rules).has_value();
  AQ_CHECK(!ours || request.host.find("evil") == std::string::npos);
  const bool let_in = !RefuseAccess(request, HttpNeed::kAdministration, rules).has_value();
  AQ_CHECK(!let_in || request.authorization->ends_with(" secret"));
  request.origin = "null";
  AQ_CHECK(RefuseCrossSite(request, HttpNeed::kReading, rules).has_value());

  JsonBody body(rest);
  const auto name = body.Text("name", 8);
  AQ_CHECK(!name || (!name->empty() && name->size() <= 8));
  const auto number = body.Whole("number", -5, 5);
  AQ_CHECK(!number || (*number >= -5 && *number <= 5));
  static_cast<void>(body.Flag("flag"));
  static_cast<void>(body.Texts("list"));
  const Status status = body.Finish();
  AQ_CHECK(status.ok() || !HttpError(400, "invalid", status.message()).body.empty());
  return 0;
}
