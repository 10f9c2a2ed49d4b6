// The credentials that sign requests to S3, and where they come from. Sources: settings that a
// caller took from the environment, a file in the form that AWS's tools use, or a web identity
// token. An STS server exchanges the token for a key that lasts an hour. No message and no log
// contains any of them.
//
// Pure functions. credential_keeper.h fetches the credentials and keeps them up to date. Any thread
// may call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "aquifer/status.h"
#include "store/s3/sigv4.h"

namespace aquifer {

// One of three, in this order: a token, a file, or the given credentials.
struct S3CredentialSettings {
  std::string token_file;    // A web identity: the token is read again for each exchange.
  std::string role_arn;      // With a token. Use "" for a server that needs none.
  std::string sts_endpoint;  // With a token: "https://sts.eu-west-1.amazonaws.com".

  std::string file;  // Closed to other users (base/text/secret_file.h). Read again when it changes.
  std::string profile = "default";

  AwsCredentials given;
};

// Reads AWS's own names: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN;
// AWS_SHARED_CREDENTIALS_FILE, AWS_PROFILE; AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN,
// AWS_ENDPOINT_URL_STS, else the region's public one. `get` is std::getenv, except in tests.
S3CredentialSettings S3CredentialsFromEnvironment(
    const std::function<const char*(const char*)>& get, std::string_view region);

// Returns kInvalid if no source of credentials is complete; the message names what is missing.
Status CheckS3Credentials(const S3CredentialSettings& settings);

// Parses the file's text: sections in brackets, each with aws_access_key_id, aws_secret_access_key
// and perhaps aws_session_token. Settings before the first section count for every profile.
Result<AwsCredentials> ParseCredentialsFile(std::string_view text, std::string_view profile);

// Overwrites the credentials in memory.
void WipeCredentials(AwsCredentials* credentials);

}  // namespace aquifer
