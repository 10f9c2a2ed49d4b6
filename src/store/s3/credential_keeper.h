// CredentialKeeper holds the credentials that requests are signed with. It reads a file again when
// it has changed. It exchanges a web identity token for new credentials well before the old ones
// end. It wipes credentials that it no longer needs.
//
// Runs on the loop's thread only. `on_change` reports that awaited credentials are there, or
// failed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "aquifer/status.h"
#include "base/clock.h"
#include "store/s3/http_loop.h"
#include "store/s3/s3_credentials.h"
#include "store/s3/sigv4.h"

namespace aquifer {

class CredentialKeeper {
 public:
  // Both outlive the keeper.
  CredentialKeeper(S3CredentialSettings settings, HttpLoop* loop, Clock* clock,
                   std::function<void()> on_change);
  ~CredentialKeeper();  // Call Stop() first, on the loop's thread.

  // Ok: current() is valid. kBusy: on_change will follow. Otherwise: why there are no credentials.
  Status Ready();
  const AwsCredentials& current() const { return current_; }

  // A server refused the credentials: the next Ready() looks for new ones. Returns false if there
  // is no way to get any.
  bool Refuse();

  void Stop();

 private:
  Status ReadFile();
  Status RenewByToken();
  void Exchange();
  void OnExchanged();
  bool IsExpired() const;

  S3CredentialSettings settings_;  // Given credentials have moved to current_.
  HttpLoop* const loop_;
  Clock* const clock_;
  const std::function<void()> on_change_;

  AwsCredentials current_;
  bool refused_ = false;
  int64_t next_look_nanos_ = INT64_MIN;  // When to look at the file, or to exchange again.
  int64_t file_changed_nanos_ = 0;       // The file's modification time when it was read.

  bool exchanging_ = false;
  HttpExchange exchange_;
  std::string form_;  // Contains the token.
  Status failure_;    // The last exchange's failure.
  int64_t expiry_unix_seconds_ = 0;
  int64_t renewal_unix_seconds_ = 0;
};

}  // namespace aquifer
