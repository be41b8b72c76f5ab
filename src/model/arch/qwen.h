// model/arch/qwen.h - what Qwen 2 and Qwen 3 share.
#pragma once

#include "model/arch/parts.h"

namespace quire {

// Gives every layer this spec, with the model's rotation and its windows.
Status fill_qwen(const Hyperparameters& from, const LayerSpec& layer, ModelConfig& config);

}  // namespace quire
