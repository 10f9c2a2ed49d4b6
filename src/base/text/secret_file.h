// Files that hold a secret: master keys, passwords. Nothing of their content is ever in a message.
#pragma once

#include <sys/types.h>

#include <string>

#include "aquifer/status.h"

namespace aquifer {

// At most 16 KiB, of a file that belongs to `self`, the process's own user, and is closed to all
// others, or to root, who may let a group read it. Whoever calls wipes it (WipeSecret).
Result<std::string> ReadSecretFile(const std::string& path, uid_t self);

// The same, of a file with one line, without its end.
Result<std::string> ReadSecretLine(const std::string& path, uid_t self);

// Whether a file with this owner and these permissions may hold a secret.
Status CheckSecretFileMode(const std::string& path, uid_t owner, mode_t mode, uid_t self);

}  // namespace aquifer
