// model/arch/qwen.h - what Qwen 2 and Qwen 3 share.
#pragma once

#include "model/arch/arch.h"

namespace quire {

Status fill_qwen(const Hyperparameters& from, ModelConfig& config);

}  // namespace quire
