import torch.nn as nn


def conv_bn(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


class Backbone(nn.Module):
    def __init__(self, width, depth, classes=10):
        super().__init__()
        layers = [conv_bn(3, width, 2)]
        layers += [conv_bn(width, width) for _ in range(depth)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x):
        return self.fc(self.body(x))


def student():
    return Backbone(12, 1)


def teacher():
    return Backbone(24, 3)
