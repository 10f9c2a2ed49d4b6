// By which name and key we sign requests to S3, and where they come from: settings that somebody
// took from the environment, a file in the form that AWS's tools use, or a web identity token that
// an STS server exchanges for a key that lasts an hour. Nothing here is ever in a message or a log.
//
// Pure functions: fetching and keeping them up to date is credential_keeper.h's. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "aquifer/status.h"
#include "store/s3/sigv4.h"

namespace aquifer {

// One of three, in this order: a token, a file, or what is given.
struct S3CredentialSettings {
  std::string token_file;    // A web identity: the token is read again for each exchange.
  std::string role_arn;      // With a token; a server that needs none may be given "".
  std::string sts_endpoint;  // With a token: "https://sts.eu-west-1.amazonaws.com".

  std::string file;  // Closed to other users (base/text/secret_file.h). Read again when it changes.
  std::string profile = "default";

  AwsCredentials given;
};

// From AWS's own names: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN;
// AWS_SHARED_CREDENTIALS_FILE, AWS_PROFILE; AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN,
// AWS_ENDPOINT_URL_STS, else the region's public one. `get` is std::getenv, but for tests.
S3CredentialSettings S3CredentialsFromEnvironment(
    const std::function<const char*(const char*)>& get, std::string_view region);

// kInvalid where no way to credentials is complete; names what is missing.
Status CheckS3Credentials(const S3CredentialSettings& settings);

// The file's text: sections in brackets, with aws_access_key_id, aws_secret_access_key and perhaps
// aws_session_token in each. What stands before the first section counts for every profile.
Result<AwsCredentials> ParseCredentialsFile(std::string_view text, std::string_view profile);

// Overwrites what it held.
void WipeCredentials(AwsCredentials* credentials);

}  // namespace aquifer
