// kv/layout.h - a Geometry as bytes, so that it can stand in a block's identity and in a file's
// header.
//
// Two geometries have the same encoding exactly when their blocks are interchangeable byte for
// byte. Versioned; the encoding of a geometry never changes within a version.
//
//   RootIdentity id{.layout = layout_digest(geometry), ...};
#pragma once

#include <string>

#include "kernels/geometry.h"
#include "kv/key.h"

namespace quire {

std::string encode_layout(const Geometry& geometry);
Digest layout_digest(const Geometry& geometry);  // SHA-256 of the encoding

}  // namespace quire
