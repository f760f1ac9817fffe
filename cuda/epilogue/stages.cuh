// Every stage; jit/epilogues.py names them.
#pragma once

#include "epilogue/activate.cuh"
#include "epilogue/bias.cuh"
#include "epilogue/chain.cuh"
#include "epilogue/gate.cuh"
#include "epilogue/markers.cuh"
#include "epilogue/normed.cuh"
#include "epilogue/residual.cuh"
#include "epilogue/scale.cuh"
#include "epilogue/turn.cuh"
