#include "store/s3/s3_credentials.h"

#include <fmt/format.h>

#include <span>

#include "base/crypto/secret_key.h"

namespace aquifer {
namespace {

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

void TakeLine(std::string_view line, AwsCredentials* credentials) {
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) return;
  const std::string_view name = Trimmed(line.substr(0, equals));
  const std::string_view value = Trimmed(line.substr(equals + 1));
  if (name == "aws_access_key_id") credentials->access_key = value;
  if (name == "aws_secret_access_key") credentials->secret_key = value;
  if (name == "aws_session_token") credentials->session_token = value;
}

}  // namespace

S3CredentialSettings S3CredentialsFromEnvironment(
    const std::function<const char*(const char*)>& get, std::string_view region) {
  const auto value = [&](const char* name) {
    const char* const set = get(name);
    return std::string(set == nullptr ? "" : set);
  };
  S3CredentialSettings settings;
  settings.given = {.access_key = value("AWS_ACCESS_KEY_ID"),
                    .secret_key = value("AWS_SECRET_ACCESS_KEY"),
                    .session_token = value("AWS_SESSION_TOKEN")};
  if (!settings.given.access_key.empty()) return settings;  // The same choice as AWS's own tools.
  settings.file = value("AWS_SHARED_CREDENTIALS_FILE");
  if (const std::string profile = value("AWS_PROFILE"); !profile.empty()) {
    settings.profile = profile;
  }
  settings.token_file = value("AWS_WEB_IDENTITY_TOKEN_FILE");
  settings.role_arn = value("AWS_ROLE_ARN");
  settings.sts_endpoint = value("AWS_ENDPOINT_URL_STS");
  if (settings.sts_endpoint.empty()) {
    settings.sts_endpoint = fmt::format("https://sts.{}.amazonaws.com", region);
  }
  return settings;
}

Status CheckS3Credentials(const S3CredentialSettings& settings) {
  if (!settings.token_file.empty()) {
    return settings.sts_endpoint.empty()
               ? Status(Code::kInvalid, "a web identity token needs an STS endpoint as well")
               : Status();
  }
  if (!settings.file.empty()) return {};
  if (settings.given.access_key.empty() || settings.given.secret_key.empty()) {
    return {Code::kInvalid,
            "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
            "node's environment, or name a file with them"};
  }
  return {};
}

Result<AwsCredentials> ParseCredentialsFile(std::string_view text, std::string_view profile) {
  AwsCredentials credentials;
  bool counts = true;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = Trimmed(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      counts = line.back() == ']' && Trimmed(line.substr(1, line.size() - 2)) == profile;
    } else if (counts) {
      TakeLine(line, &credentials);
    }
  }
  if (credentials.access_key.empty() || credentials.secret_key.empty()) {
    return Status(Code::kInvalid,
                  fmt::format("there are no aws_access_key_id and aws_secret_access_key for "
                              "profile '{}'",
                              profile));
  }
  return credentials;
}

void WipeCredentials(AwsCredentials* credentials) {
  for (std::string* secret : {&credentials->secret_key, &credentials->session_token}) {
    WipeSecret(std::as_writable_bytes(std::span(*secret)));
    secret->clear();
  }
  credentials->access_key.clear();
}

}  // namespace aquifer
