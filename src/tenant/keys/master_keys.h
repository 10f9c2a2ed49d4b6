// Reads the master keys that people give to a node: in a file, or in the environment. Each has 32
// bytes, written as 64 hexadecimal digits or in base64. The first key wraps, all unwrap
// (tenant/keys/key_wrapper.h). Error messages contain no byte of a key.
//
// Any thread may call.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "base/crypto/secret_key.h"

namespace aquifer {

// The variable that holds the keys when no file is named. Newlines, spaces or commas separate keys.
inline constexpr const char* kMasterKeyVariable = "AQUIFER_MASTER_KEY";

// One to 16 keys. Lines that begin with '#' are comments. `where` is for messages.
Result<std::vector<SecretKey>> ParseMasterKeys(std::string_view text, const std::string& where);

// Reads a file that only its owner can read: see base/text/secret_file.h.
Result<std::vector<SecretKey>> ReadMasterKeyFile(const std::string& path, uid_t self);

// Returns the variable's value, or nothing, and wipes it from the environment: children and
// /proc/PID/environ do not see it any more. The caller wipes the result (WipeSecret). Call at
// start, before there are threads.
std::string TakeFromEnvironment(const char* variable);

}  // namespace aquifer
