// engine/weights_digest.h - a model's weights by their content, for keys of blocks that outlive the
// process.
//
// Hashing takes about a second per gigabyte, so digests are remembered in a file, by path, size,
// times, inode and device. A file that was changed is hashed again, whatever its time says: the time
// of its last change of status cannot be set.
//
//   TRY(const Digest digest, weights_digest("model.gguf", folder + "/weights"));
#pragma once

#include <string>

#include "base/result.h"
#include "kv/key.h"

namespace quire {

// Of a GGUF file, of all parts of a split one, or of every file in a folder that can change logits:
// weights and descriptions.
// `memory`: where digests are remembered; a file that cannot be read or written costs time only.
Result<Digest> weights_digest(const std::string& path, const std::string& memory);

}  // namespace quire
