#include "store/s3/credential_keeper.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/crypto/secret_key.h"
#include "base/text/secret_file.h"
#include "store/s3/s3_answer.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kFilePauseNanos = 5 * kSecond;
constexpr int64_t kFailurePauseNanos = kSecond;
// Renewed so long before the end, or at half of the time if that is less.
constexpr int64_t kRenewalSeconds = 300;

void WipeText(std::string* text) {
  WipeSecret(std::as_writable_bytes(std::span(*text)));
  text->clear();
}

// Not ReadSecretFile(): Kubernetes mounts tokens with permissions of its own, and they end within
// the hour.
Result<std::string> ReadTokenFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Status(Code::kUnavailable,
                  fmt::format("the token in {} cannot be read: {}; next step: make it readable for "
                              "the node's user",
                              path, std::strerror(errno)));
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// One word for the failure of an STS server, or of a proxy before it. The server's message may
// repeat the token. A code that is none may be the token itself.
std::string StsWord(const HttpExchange& exchange) {
  constexpr size_t kMostLetters = 64;
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const std::string code = ParseS3Error(exchange.text).code;
  const bool word = !code.empty() && code.size() <= kMostLetters &&
                    code.find_first_not_of(kLetters) == std::string::npos;
  return word ? code : fmt::format("HTTP {}", exchange.http_status);
}

// Returns 0 if the file is not there.
int64_t ChangedNanos(const std::string& path) {
  struct stat found{};
  if (::stat(path.c_str(), &found) != 0) return 0;
  return found.st_mtim.tv_sec * kSecond + found.st_mtim.tv_nsec;
}

}  // namespace

CredentialKeeper::CredentialKeeper(S3CredentialSettings settings, HttpLoop* loop, Clock* clock,
                                   std::function<void()> on_change)
    : settings_(std::move(settings)), loop_(loop), clock_(clock), on_change_(std::move(on_change)) {
  if (settings_.token_file.empty() && settings_.file.empty()) current_ = settings_.given;
  WipeCredentials(&settings_.given);
}

CredentialKeeper::~CredentialKeeper() { WipeCredentials(&current_); }

void CredentialKeeper::Stop() {
  if (exchanging_) loop_->Stop(&exchange_);
  exchanging_ = false;
  WipeText(&form_);
}

Status CredentialKeeper::Ready() {
  if (!settings_.token_file.empty()) return RenewByToken();
  if (!settings_.file.empty()) return ReadFile();
  return {};
}

bool CredentialKeeper::Refuse() {
  refused_ = true;
  return !settings_.token_file.empty() || !settings_.file.empty();
}

Status CredentialKeeper::ReadFile() {
  const int64_t now = clock_->NowNanos();
  const bool have = !current_.access_key.empty();
  if (have && !refused_ && now < next_look_nanos_) return {};
  next_look_nanos_ = now + kFilePauseNanos;
  const int64_t changed = ChangedNanos(settings_.file);
  if (have && !refused_ && (changed == file_changed_nanos_ || changed == 0)) return {};
  refused_ = false;
  Result<std::string> text = ReadSecretFile(settings_.file, ::geteuid());
  if (!text.ok()) return {Code::kUnavailable, std::string(text.status().message())};
  Result<AwsCredentials> parsed = ParseCredentialsFile(*text, settings_.profile);
  WipeText(&*text);
  if (!parsed.ok()) {
    return {Code::kUnavailable, fmt::format("{}: {}", settings_.file, parsed.status().message())};
  }
  WipeCredentials(&current_);
  current_ = *std::move(parsed);
  file_changed_nanos_ = changed;
  return {};
}

bool CredentialKeeper::IsExpired() const {
  return current_.access_key.empty() || refused_ || clock_->UnixSeconds() >= expiry_unix_seconds_;
}

Status CredentialKeeper::RenewByToken() {
  const bool expired = IsExpired();
  const bool due = expired || clock_->UnixSeconds() >= renewal_unix_seconds_;
  if (due && !exchanging_ && clock_->NowNanos() >= next_look_nanos_) Exchange();
  if (!expired) return {};
  if (exchanging_) return Status(Code::kBusy);
  return failure_;
}

void CredentialKeeper::Exchange() {
  next_look_nanos_ = clock_->NowNanos() + kFailurePauseNanos;
  Result<std::string> token = ReadTokenFile(settings_.token_file);
  if (!token.ok()) {
    failure_ = token.status();
    return;
  }
  while (!token->empty() && static_cast<unsigned char>(token->back()) <= ' ') token->pop_back();
  std::vector<std::pair<std::string, std::string>> form = {{"Action", "AssumeRoleWithWebIdentity"},
                                                           {"Version", "2011-06-15"},
                                                           {"RoleSessionName", "aquifer"},
                                                           {"DurationSeconds", "3600"},
                                                           {"WebIdentityToken", *token}};
  if (!settings_.role_arn.empty()) form.emplace_back("RoleArn", settings_.role_arn);
  form_ = EscapeQuery(form);
  WipeText(&*token);
  WipeText(&form[4].second);

  exchange_ = {.method = "POST",
               .url = settings_.sts_endpoint + "/",
               .headers = {{"accept", "application/xml"}},
               .send = {std::as_bytes(std::span(form_))},
               .receive = {},
               .on_done = [this](HttpExchange&) { OnExchanged(); }};
  exchanging_ = true;
  loop_->Start(&exchange_);
}

void CredentialKeeper::OnExchanged() {
  exchanging_ = false;
  WipeText(&form_);
  Result<StsAnswer> answer = ParseStsAnswer(exchange_.text);
  if (exchange_.failure == HttpFailure::kNone && exchange_.http_status == 200 && answer.ok()) {
    WipeCredentials(&current_);
    current_ = answer->credentials;
    WipeCredentials(&answer->credentials);
    refused_ = false;
    failure_ = {};
    const int64_t now = clock_->UnixSeconds();
    expiry_unix_seconds_ = answer->expiry_unix_seconds;
    renewal_unix_seconds_ =
        expiry_unix_seconds_ - std::min(kRenewalSeconds, (expiry_unix_seconds_ - now) / 2);
  } else {
    failure_ =
        Status(Code::kUnavailable,
               fmt::format("{} does not exchange our web identity token ({}); next step: see that "
                           "the role trusts its issuer, and that the token has not expired",
                           settings_.sts_endpoint,
                           exchange_.failure != HttpFailure::kNone ? exchange_.failure_text
                                                                   : StsWord(exchange_)));
  }
  WipeText(&exchange_.text);
  on_change_();
}

}  // namespace aquifer
