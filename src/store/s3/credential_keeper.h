// Keeps what requests are signed with: reads a file again when it has changed, and exchanges a web
// identity token for new credentials well before the old ones end. Wipes what it held.
//
// On the loop's thread alone. What is waited for is told by `on_change`.
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
  // Both outlive it.
  CredentialKeeper(S3CredentialSettings settings, HttpLoop* loop, Clock* clock,
                   std::function<void()> on_change);
  ~CredentialKeeper();  // Stop() came before, on the loop's thread.

  // Ok: current() is good. kBusy: on_change will come. Else why there are none.
  Status Ready();
  const AwsCredentials& current() const { return current_; }

  // A server did not take them: the next Ready() looks for others. False: there is no way to any.
  bool Refuse();

  void Stop();

 private:
  Status ReadFile();
  Status RenewByToken();
  void Exchange();
  void OnExchanged();
  bool IsExpired() const;

  S3CredentialSettings settings_;  // What was given has moved to current_.
  HttpLoop* const loop_;
  Clock* const clock_;
  const std::function<void()> on_change_;

  AwsCredentials current_;
  bool refused_ = false;
  int64_t next_look_nanos_ = INT64_MIN;  // At the file, or for another exchange.
  int64_t file_changed_nanos_ = 0;       // Its modification time when it was read.

  bool exchanging_ = false;
  HttpExchange exchange_;
  std::string form_;  // Has the token in it.
  Status failure_;    // Of the last exchange.
  int64_t expiry_unix_seconds_ = 0;
  int64_t renewal_unix_seconds_ = 0;
};

}  // namespace aquifer
