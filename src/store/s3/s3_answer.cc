#include "store/s3/s3_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <functional>

namespace aquifer {
namespace {

constexpr size_t kMostDepth = 16;
constexpr size_t kMostObjects = 10'000;
constexpr size_t kMostWords = 300;  // Of a server's message.

void AppendUtf8(uint32_t code, std::string* text) {
  if (code < 0x80) {
    text->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    text->push_back(static_cast<char>(0xC0 | (code >> 6)));
    text->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    text->push_back(static_cast<char>(0xE0 | (code >> 12)));
    text->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    text->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    text->push_back(static_cast<char>(0xF0 | (code >> 18)));
    text->push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3F)));
    text->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    text->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

// Returns false if there is no such character.
bool AppendEntity(std::string_view name, std::string* text) {
  static constexpr std::pair<std::string_view, char> kNamed[] = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  for (const auto& [known, character] : kNamed) {
    if (name == known) return text->push_back(character), true;
  }
  if (!name.starts_with('#')) return false;
  name.remove_prefix(1);
  const bool hex = name.starts_with('x');
  if (hex) name.remove_prefix(1);
  uint32_t code = 0;
  const char* const begin = name.data();
  const char* const end = begin + name.size();
  const auto [stopped, error] = std::from_chars(begin, end, code, hex ? 16 : 10);
  if (error != std::errc() || stopped != end || code == 0 || code > 0x10FFFF) return false;
  AppendUtf8(code, text);
  return true;
}

bool AppendText(std::string_view raw, std::string* text) {
  while (!raw.empty()) {
    const size_t ampersand = raw.find('&');
    text->append(raw.substr(0, ampersand));
    if (ampersand == std::string_view::npos) return true;
    raw.remove_prefix(ampersand + 1);
    const size_t semicolon = raw.find(';');
    if (semicolon == std::string_view::npos || !AppendEntity(raw.substr(0, semicolon), text)) {
      return false;
    }
    raw.remove_prefix(semicolon + 1);
  }
  return true;
}

// Walks over elements. For each one that ends, it reports its path ("Error/Code", without
// namespaces) and its text, which is all that S3's answers need. Returns false if the text is no
// XML.
class XmlWalk {
 public:
  using OnElement = std::function<void(const std::string& path, const std::string& text)>;

  XmlWalk(std::string_view xml, OnElement on_element)
      : left_(xml), on_element_(std::move(on_element)) {}

  bool Run() {
    while (!left_.empty()) {
      const size_t bracket = left_.find('<');
      if (!AppendText(left_.substr(0, bracket), &text_)) return false;
      if (bracket == std::string_view::npos) break;
      left_.remove_prefix(bracket + 1);
      if (!Tag()) return false;
    }
    return lengths_.empty() && seen_any_;
  }

 private:
  // Returns the text before `end`, and moves behind `end`.
  std::optional<std::string_view> Until(std::string_view end) {
    const size_t at = left_.find(end);
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view before = left_.substr(0, at);
    left_.remove_prefix(at + end.size());
    return before;
  }

  bool Tag() {
    if (left_.starts_with("!--")) return Until("-->").has_value();
    if (left_.starts_with("![CDATA[")) {
      left_.remove_prefix(8);
      const auto plain = Until("]]>");
      if (plain.has_value()) text_.append(*plain);
      return plain.has_value();
    }
    const auto inside = Until(">");
    if (!inside.has_value() || inside->empty()) return false;
    if (inside->front() == '?') return true;
    if (inside->front() == '!') return false;  // A DOCTYPE: no S3 server sends one.
    if (inside->front() == '/') return Close(inside->substr(1));
    const bool closed = inside->back() == '/';
    const std::string_view name = inside->substr(0, inside->find_first_of(" \t\r\n/"));
    return Open(name) && (!closed || Close(name));
  }

  bool Open(std::string_view name) {
    if (name.empty() || lengths_.size() == kMostDepth) return false;
    seen_any_ = true;
    lengths_.push_back(path_.size());
    const size_t colon = name.find(':');
    if (colon != std::string_view::npos) name.remove_prefix(colon + 1);
    if (!path_.empty()) path_.push_back('/');
    path_.append(name);
    text_.clear();
    return true;
  }

  bool Close(std::string_view name) {
    const size_t colon = name.find(':');
    if (colon != std::string_view::npos) name.remove_prefix(colon + 1);
    while (!name.empty() && static_cast<unsigned char>(name.back()) <= ' ') name.remove_suffix(1);
    if (lengths_.empty()) return false;
    const size_t start = lengths_.back() == 0 ? 0 : lengths_.back() + 1;
    if (std::string_view(path_).substr(start) != name) return false;
    on_element_(path_, text_);
    path_.resize(lengths_.back());
    lengths_.pop_back();
    text_.clear();
    return true;
  }

  std::string_view left_;
  const OnElement on_element_;
  std::string path_;
  std::vector<size_t> lengths_;  // Lengths of path_ before each open element.
  std::string text_;
  bool seen_any_ = false;
};

// The printable characters, up to a bound.
std::string Printable(std::string_view words) {
  std::string text(words.substr(0, kMostWords));
  std::replace_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

std::optional<int64_t> UnixSeconds(std::tm utc) {
  const time_t seconds = timegm(&utc);
  return seconds < 0 ? std::nullopt : std::optional<int64_t>(seconds);
}

std::optional<int64_t> ParseDate(std::string_view text, const char* format, bool whole) {
  const std::string copy(text);
  std::tm utc{};
  const char* const end = strptime(copy.c_str(), format, &utc);
  if (end == nullptr || (whole && *end != '\0')) return std::nullopt;
  return UnixSeconds(utc);
}

}  // namespace

S3Error ParseS3Error(std::string_view xml) {
  S3Error error;
  // STS wraps its errors in one more element.
  XmlWalk walk(xml, [&](const std::string& path, const std::string& text) {
    if (path == "Error/Code" || path == "ErrorResponse/Error/Code") error.code = Printable(text);
    if (path == "Error/Message" || path == "ErrorResponse/Error/Message") {
      error.message = Printable(text);
    }
    if (path == "Error/Region") error.region = Printable(text);
  });
  return walk.Run() ? error : S3Error{};
}

Result<S3Listing> ParseS3Listing(std::string_view xml) {
  S3Listing listing;
  S3Listing::Object object;
  bool good = true;
  XmlWalk walk(xml, [&](const std::string& path, const std::string& text) {
    if (path == "ListBucketResult/IsTruncated") listing.truncated = text == "true";
    if (path == "ListBucketResult/Contents/Key") object.key = text;
    if (path == "ListBucketResult/Contents/Size") {
      const char* const end = text.data() + text.size();
      good = good && std::from_chars(text.data(), end, object.bytes).ptr == end && !text.empty();
    }
    if (path != "ListBucketResult/Contents") return;
    good = good && !object.key.empty() && listing.objects.size() < kMostObjects;
    if (good) listing.objects.push_back(std::move(object));
    object = {};
  });
  if (!walk.Run() || !good || xml.find("ListBucketResult") == std::string_view::npos) {
    return Status(Code::kCorrupt, "the server's list of objects cannot be read");
  }
  return listing;
}

Result<StsAnswer> ParseStsAnswer(std::string_view xml) {
  StsAnswer answer;
  std::optional<int64_t> expiry;
  XmlWalk walk(xml, [&](const std::string& path, const std::string& text) {
    if (path.ends_with("/Credentials/AccessKeyId")) answer.credentials.access_key = text;
    if (path.ends_with("/Credentials/SecretAccessKey")) answer.credentials.secret_key = text;
    if (path.ends_with("/Credentials/SessionToken")) answer.credentials.session_token = text;
    if (path.ends_with("/Credentials/Expiration")) expiry = ParseIsoDate(text);
  });
  if (!walk.Run() || answer.credentials.access_key.empty() ||
      answer.credentials.secret_key.empty() || !expiry.has_value()) {
    return Status(Code::kCorrupt, "the STS server's answer has no credentials in it");
  }
  answer.expiry_unix_seconds = *expiry;
  return answer;
}

bool SaysVersioned(std::string_view xml) {
  bool versioned = false;
  XmlWalk walk(xml, [&](const std::string& path, const std::string& text) {
    if (path == "VersioningConfiguration/Status") versioned = !text.empty();
  });
  return walk.Run() && versioned;
}

std::optional<int64_t> ParseHttpDate(std::string_view text) {
  return ParseDate(text, "%a, %d %b %Y %H:%M:%S GMT", /*whole=*/true);
}

std::optional<int64_t> ParseIsoDate(std::string_view text) {
  return ParseDate(text, "%Y-%m-%dT%H:%M:%S", /*whole=*/false);
}

namespace {

Status Unavailable(const std::string& what, const std::string& next_step) {
  return {Code::kUnavailable, fmt::format("{}; next step: {}", what, next_step)};
}

// Returns true if the server does not know the access key. versitygw has a code of its own for it.
bool IsUnknownKey(const std::string& code) {
  return code == "InvalidAccessKeyId" || code == "XAdminUserNotFound";
}

Status ExplainDenied(const S3Error& error, const S3Context& context) {
  if (IsUnknownKey(error.code)) {
    return Unavailable(fmt::format("{} does not know our access key", context.endpoint),
                       "correct the credentials, or the endpoint");
  }
  if (error.code == "SignatureDoesNotMatch") {
    return Unavailable(fmt::format("{} refuses our signature", context.endpoint),
                       "correct the secret key; a proxy that changes requests does this too");
  }
  if (error.code == "RequestTimeTooSkewed") {
    return Unavailable(fmt::format("{} says that this host's clock is wrong", context.endpoint),
                       "set the clock of this host, or of the server (chronyc tracking)");
  }
  return Unavailable(
      fmt::format("{} denies {} in bucket '{}'{}", context.endpoint, context.method, context.bucket,
                  error.message.empty() ? "" : fmt::format(" ({})", error.message)),
      "allow this key s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there");
}

Status ExplainRegion(const S3Error& error, const S3Context& context) {
  if (!error.region.empty() && error.region != context.region) {
    return Unavailable(fmt::format("bucket '{}' is in region '{}', not in '{}'", context.bucket,
                                   error.region, context.region),
                       fmt::format("region = \"{}\", and that region's endpoint", error.region));
  }
  return Unavailable(fmt::format("bucket '{}' cannot be reached through {} in region '{}'{}",
                                 context.bucket, context.endpoint, context.region,
                                 error.message.empty() ? "" : fmt::format(" ({})", error.message)),
                     "correct the region and the endpoint");
}

bool IsFull(int http_status, const std::string& code) {
  static constexpr std::string_view kCodes[] = {"QuotaExceeded", "XMinioStorageFull",
                                                "InsufficientStorage", "XAmzQuotaExceeded"};
  return http_status == 507 || std::ranges::find(kCodes, code) != std::end(kCodes);
}

}  // namespace

Status ExplainS3Failure(int http_status, const S3Error& error, const S3Context& context) {
  const std::string& code = error.code;
  if (code == "NoSuchBucket") {
    return Unavailable(
        fmt::format("there is no bucket '{}' at {}", context.bucket, context.endpoint),
        "make it, or correct the bucket's name");
  }
  if (http_status == 404 && code.empty() && context.method == "PUT") {
    return Unavailable(fmt::format("{} has no place to write to (404)", context.endpoint),
                       "correct the endpoint: it is no S3 server, or a path is missing");
  }
  if (http_status == 404 && (code.empty() || code == "NoSuchKey")) return Status(Code::kNotFound);
  if (http_status == 416) return {Code::kCorrupt, "the object is shorter than a header"};
  if (IsFull(http_status, code)) {
    return {Code::kNoSpace,
            fmt::format("{} has no space left; next step: give it space or a larger quota, or "
                        "blocks a shorter time to live",
                        context.endpoint)};
  }
  if (code == "ExpiredToken" || code == "InvalidToken" || code == "TokenRefreshRequired") {
    return Unavailable(fmt::format("{} does not take our session token any more", context.endpoint),
                       "renew the credentials");
  }
  if (http_status == 301 || http_status == 307 || code == "AuthorizationHeaderMalformed" ||
      code == "PermanentRedirect" || code == "IncorrectEndpoint") {
    return ExplainRegion(error, context);
  }
  if (http_status == 401 || http_status == 403 || IsUnknownKey(code)) {
    return ExplainDenied(error, context);
  }
  if (http_status == 429 || code.starts_with("SlowDown")) {
    return {Code::kBusy,
            fmt::format("{} asks us to slow down; next step: more or faster servers, or fewer "
                        "nodes at once",
                        context.endpoint)};
  }
  if (http_status == 409 || http_status == 412) {
    return {Code::kBusy, "another writer was there at the same time"};
  }
  // Servers written in Go answer so to plain requests on a TLS port. An answer to HEAD has no
  // message.
  const bool maybe_tls =
      http_status == 400 && code.empty() && context.endpoint.starts_with("http://");
  return Unavailable(
      fmt::format("{} answers {} with {} {}{}", context.endpoint, context.method, http_status, code,
                  error.message.empty() ? "" : fmt::format(" ({})", error.message)),
      maybe_tls ? "if that port is for TLS, write https://; else look into the server's log"
                : "look into the server's log");
}

}  // namespace aquifer
