// The master keys that people give to a node: in a file, or in the environment. 32 bytes each,
// written as 64 hexadecimal digits or in base64; the first one wraps, all unwrap
// (tenant/keys/key_wrapper.h). What is wrong with them is said without a byte of them.
//
// Any thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "base/crypto/secret_key.h"

namespace aquifer {

// Where they are looked for when no file is named. Keys are apart by newlines, spaces or commas.
inline constexpr const char* kMasterKeyVariable = "AQUIFER_MASTER_KEY";

// One to 16 keys. Lines that begin with '#' are comments. `where` is for messages.
Result<std::vector<SecretKey>> ParseMasterKeys(std::string_view text, const std::string& where);

// Of a file that is closed to others: see base/text/secret_file.h.
Result<std::vector<SecretKey>> ReadMasterKeyFile(const std::string& path, uid_t self);

// What the variable holds, if anything, and nothing is left of it: not for children, and not in
// /proc/PID/environ. Whoever calls wipes it (WipeSecret). At start, before there are threads.
std::string TakeFromEnvironment(const char* variable);

}  // namespace aquifer
